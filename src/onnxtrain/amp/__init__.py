"""Loss scaling for training in float16, the counterpart of ``onnxruntime.training.amp``."""

from onnxtrain.amp.loss_scaler import DynamicLossScaler, LossScaler

__all__ = ["DynamicLossScaler", "LossScaler"]
