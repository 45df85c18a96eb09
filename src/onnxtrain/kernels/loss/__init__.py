"""Losses over class labels and their gradients."""

from onnxtrain.kernels.loss import cross_entropy, last_axis, likelihood, projected, with_grad

__all__ = ["cross_entropy", "last_axis", "likelihood", "projected", "with_grad"]
