"""Words for graphs: loading, building, inferring, editing and checking (onnx-ir, no torch)."""
