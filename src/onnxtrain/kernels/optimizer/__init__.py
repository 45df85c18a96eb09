"""Optimizers: over lists of tensors, one parameter a node, LAMB, and ONNX's own."""

from onnxtrain.kernels.optimizer import lamb, parameter, preview, sequence

__all__ = ["lamb", "parameter", "preview", "sequence"]
