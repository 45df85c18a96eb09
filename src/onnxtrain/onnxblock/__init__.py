"""Edit a model block by block: add losses, ask for gradients, write optimizer graphs.

A drop-in for ``onnxruntime.training.onnxblock``. Everything happens inside a context that holds
the one model being edited; calling a block adds nodes to that model and gives the names of what
they compute::

    with onnxblock.base(model) as accessor:
        loss_name = onnxblock.loss.MSELoss()("output")
        edited = accessor.model
"""

import importlib
from typing import Any

# modules that programs for the reference reach from here without importing them
from onnxtrain.onnxblock import _graph_utils as _graph_utils
from onnxtrain.onnxblock import blocks, loss, optim
from onnxtrain.onnxblock import checkpoint_utils as checkpoint_utils
from onnxtrain.onnxblock import model_accessor as model_accessor
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.checkpoint import load_checkpoint_to_model, save_checkpoint
from onnxtrain.onnxblock.model_accessor import base, custom_op_library, empty_base
from onnxtrain.onnxblock.onnxblock import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]


def __getattr__(name: str) -> Any:
    """The module that differentiates, which most programs do not need and which takes long."""
    if name == "_training_graph_utils":
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
