"""Types and shapes: ONNX's inference, and what it does not know or gets wrong."""
