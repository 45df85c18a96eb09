"""Where onnxruntime-training keeps Module; the same as in ``onnxtrain.api``."""

from onnxtrain.training.module import Module

__all__ = ["Module"]
