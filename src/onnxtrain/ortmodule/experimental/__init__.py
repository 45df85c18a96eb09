"""What onnxruntime-training has in ``ortmodule.experimental``: parts of modules, and settings."""
