"""Optimizers for torch modules, and optimizer settings and schedules as values.

The counterpart of ``onnxruntime.training.optim``. Optimizers of ONNX models are blocks, see
``onnxtrain.onnxblock.optim``; a config makes one with ``to_block()``.
"""

from onnxtrain.optim.config import AdamConfig, LambConfig, SGDConfig
from onnxtrain.optim.fp16_optimizer import FP16_Optimizer
from onnxtrain.optim.fused_adam import AdamWMode, FusedAdam
from onnxtrain.optim.lr_scheduler import (
    ConstantWarmupLRScheduler,
    CosineWarmupLRScheduler,
    LinearWarmupLRScheduler,
    PolyWarmupLRScheduler,
)

__all__ = [
    "AdamConfig",
    "AdamWMode",
    "ConstantWarmupLRScheduler",
    "CosineWarmupLRScheduler",
    "FP16_Optimizer",
    "FusedAdam",
    "LambConfig",
    "LinearWarmupLRScheduler",
    "PolyWarmupLRScheduler",
    "SGDConfig",
]
