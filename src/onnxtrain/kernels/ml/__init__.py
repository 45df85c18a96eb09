"""Classical machine learning: the operators of ai.onnx.ml."""

from onnxtrain.kernels.ml import encode, features, linear, maps, old_trees, svm, trees, with_weights

__all__ = ["encode", "features", "linear", "maps", "old_trees", "svm", "trees", "with_weights"]
