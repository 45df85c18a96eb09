"""Torch modules whose forward and backward passes onnxtrain runs, as ORTModule did.

``ORTModule(module)`` is used in place of the module, which is exported to ONNX when it is first
called, differentiated, and run by onnxtrain's kernels inside torch's autograd.
"""

from onnxtrain.ortmodule.graph_optimizer_registry import register_graph_optimizer
from onnxtrain.ortmodule.module import ORTModule
from onnxtrain.ortmodule.options import DebugOptions, FallbackPolicy, LogLevel

__all__ = ["DebugOptions", "FallbackPolicy", "LogLevel", "ORTModule", "register_graph_optimizer"]
