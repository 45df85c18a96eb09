"""Classical machine learning: the operators of ai.onnx.ml that work on tensors."""

from onnxtrain.kernels.ml import encode, features, linear, old_trees, trees

__all__ = ["encode", "features", "linear", "old_trees", "trees"]
