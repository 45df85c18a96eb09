"""Artifacts: the files of a training run, made offline.

``generate_artifacts`` writes the training, evaluation and optimizer models and the checkpoint.
"""

from onnxtrain import onnxblock as onnxblock  # programs for the reference also find it here
from onnxtrain.artifacts.generate import LossType, OptimType, generate_artifacts

USE_PATH_THRESHOLD = 2**31
"""Bytes above which a model is given as a path: protobuf does not serialize it."""

__all__ = ["USE_PATH_THRESHOLD", "LossType", "OptimType", "generate_artifacts"]
