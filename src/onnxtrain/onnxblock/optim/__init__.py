"""Optimizers: blocks whose model updates parameters from gradients."""

from onnxtrain.onnxblock.optim.clip import ClipGradNorm, ClipGradValue
from onnxtrain.onnxblock.optim.lamb import Lamb
from onnxtrain.onnxblock.optim.optim import (
    SGD,
    Adam,
    AdamW,
    AdamWOptimizer,
    SGDOptimizer,
)

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "AdamWOptimizer",
    "ClipGradNorm",
    "ClipGradValue",
    "Lamb",
    "SGDOptimizer",
]
