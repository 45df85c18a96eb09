"""Where onnxruntime-training keeps these two; the same as in ``onnxblock``."""

from onnxtrain.onnxblock.checkpoint import load_checkpoint_to_model, save_checkpoint

__all__ = ["load_checkpoint_to_model", "save_checkpoint"]
