"""Where onnxruntime-training keeps Optimizer; the same as in ``onnxtrain.api``."""

from onnxtrain.training.optimizer import Optimizer

__all__ = ["Optimizer"]
