"""Where onnxruntime-training keeps LinearLRScheduler; the same as in ``onnxtrain.api``."""

from onnxtrain.training.lr_scheduler import LinearLRScheduler

__all__ = ["LinearLRScheduler"]
