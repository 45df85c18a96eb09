"""Gradient graphs: the rules of every operator and the engine that applies them (no torch)."""

from onnxtrain.gradients.api import GradientGraphBuilder, build_gradient_graph
from onnxtrain.gradients.external import register_gradient, unregister_gradient

__all__ = [
    "GradientGraphBuilder",
    "build_gradient_graph",
    "register_gradient",
    "unregister_gradient",
]
