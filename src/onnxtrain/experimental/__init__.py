"""Exports that are still looking for their final form."""

from onnxtrain.experimental.gradient_graph import export_gradient_graph

__all__ = ["export_gradient_graph"]
