"""Optimizers: blocks whose model updates parameters from gradients."""

from onnxtrain.onnxblock.optim.optim import (
    SGD,
    AdamW,
    AdamWOptimizer,
    ClipGradNorm,
    SGDOptimizer,
)

__all__ = ["SGD", "AdamW", "AdamWOptimizer", "ClipGradNorm", "SGDOptimizer"]
