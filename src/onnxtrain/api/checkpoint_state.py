"""Where onnxruntime-training keeps CheckpointState; the same as in ``onnxtrain.api``."""

from onnxtrain.training.checkpoint import CheckpointState, Parameter, Parameters, Properties

__all__ = ["CheckpointState", "Parameter", "Parameters", "Properties"]
