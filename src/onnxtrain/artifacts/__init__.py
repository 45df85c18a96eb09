"""Artifacts: the files of a training run, made offline.

``generate_artifacts`` writes the training, evaluation and optimizer models and the checkpoint.
"""

from onnxtrain.artifacts.generate import LossType, OptimType, generate_artifacts

__all__ = ["LossType", "OptimType", "generate_artifacts"]
