"""The demo: train a small CNN, given as an ONNX file, to read handwritten digits."""
