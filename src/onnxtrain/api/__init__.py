"""The training API: drop-in for ``onnxruntime.training.api``."""

from onnxtrain.api import checkpoint_state, lr_scheduler, module, optimizer
from onnxtrain.training.checkpoint import CheckpointState
from onnxtrain.training.lr_scheduler import (
    ConstantLRScheduler,
    CosineLRScheduler,
    LinearLRScheduler,
    LRScheduler,
    PolynomialLRScheduler,
)
from onnxtrain.training.module import Module
from onnxtrain.training.optimizer import Optimizer

__all__ = [
    "CheckpointState",
    "ConstantLRScheduler",
    "CosineLRScheduler",
    "LRScheduler",
    "LinearLRScheduler",
    "Module",
    "Optimizer",
    "PolynomialLRScheduler",
    "checkpoint_state",
    "lr_scheduler",
    "module",
    "optimizer",
]
