"""onnxtrain: the training runtime for ONNX models.

Names are imported when they are first used, so that ``import onnxtrain`` is cheap and the offline
half (gradient graphs, artifacts) never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxtrain import (
        amp,
        api,
        artifacts,
        backend,
        experimental,
        gradients,
        onnxblock,
        optim,
        utils,
    )
    from onnxtrain.derivative import grad
    from onnxtrain.errors import (
        CheckpointError,
        DeviceError,
        FeedError,
        GraphError,
        LossError,
        ModelError,
        NodeError,
        NoGradientError,
        NoKernelError,
        OnnxTrainError,
        OptionError,
        ParameterError,
        RegistrationError,
        SaveError,
    )
    from onnxtrain.gradients.rules import gradient, no_gradient
    from onnxtrain.kernels.library import (
        register_cpu_training_kernels,
        register_cuda_training_kernels,
    )
    from onnxtrain.kernels.registry import Kernel, KernelRegistry, kernel
    from onnxtrain.runtime.options import (
        GraphOptimizationLevel,
        RunOptions,
        SessionOptions,
        get_available_providers,
        get_device,
    )
    from onnxtrain.runtime.ort_value import OrtValue
    from onnxtrain.runtime.seeds import set_seed
    from onnxtrain.runtime.session import InferenceSession
    from onnxtrain.training.trainer import Trainer
    from onnxtrain.transforms.lora import LoraConfig

__version__ = "0.1.0"

_PLACES = {
    "onnxtrain.derivative": ("grad",),
    "onnxtrain.errors": (
        "CheckpointError",
        "DeviceError",
        "FeedError",
        "GraphError",
        "LossError",
        "ModelError",
        "NoGradientError",
        "NoKernelError",
        "NodeError",
        "OnnxTrainError",
        "OptionError",
        "ParameterError",
        "RegistrationError",
        "SaveError",
    ),
    "onnxtrain.gradients.rules": ("gradient", "no_gradient"),
    "onnxtrain.kernels.library": (
        "register_cpu_training_kernels",
        "register_cuda_training_kernels",
    ),
    "onnxtrain.kernels.registry": ("Kernel", "KernelRegistry", "kernel"),
    "onnxtrain.runtime.options": (
        "GraphOptimizationLevel",
        "RunOptions",
        "SessionOptions",
        "get_available_providers",
        "get_device",
    ),
    "onnxtrain.runtime.ort_value": ("OrtValue",),
    "onnxtrain.runtime.seeds": ("set_seed",),
    "onnxtrain.runtime.session": ("InferenceSession",),
    "onnxtrain.training.trainer": ("Trainer",),
    "onnxtrain.transforms.lora": ("LoraConfig",),
}
_MODULES = (
    "amp",
    "api",
    "artifacts",
    "backend",
    "experimental",
    "gradients",
    "onnxblock",
    "optim",
    "utils",
)
_NAMES = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "CheckpointError",
    "DeviceError",
    "FeedError",
    "GraphError",
    "GraphOptimizationLevel",
    "InferenceSession",
    "Kernel",
    "KernelRegistry",
    "LoraConfig",
    "LossError",
    "ModelError",
    "NoGradientError",
    "NoKernelError",
    "NodeError",
    "OnnxTrainError",
    "OptionError",
    "OrtValue",
    "ParameterError",
    "RegistrationError",
    "RunOptions",
    "SaveError",
    "SessionOptions",
    "Trainer",
    "amp",
    "api",
    "artifacts",
    "backend",
    "experimental",
    "get_available_providers",
    "get_device",
    "grad",
    "gradient",
    "gradients",
    "kernel",
    "no_gradient",
    "onnxblock",
    "optim",
    "register_cpu_training_kernels",
    "register_cuda_training_kernels",
    "set_seed",
    "utils",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _MODULES:
        return importlib.import_module(f"onnxtrain.{name}")
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'onnxtrain' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names."""
    return sorted([*__all__, "__version__"])
