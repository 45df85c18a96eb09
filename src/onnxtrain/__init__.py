"""onnxtrain: the training runtime for ONNX models.

Names are imported when they are first used, so that ``import onnxtrain`` is cheap and the offline
half (gradient graphs, artifacts) never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onnxtrain.runtime.absent import absent

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
        ort_triton,
        ortmodule,
        utils,
    )
    from onnxtrain.derivative import grad
    from onnxtrain.environment import (
        copy_tensors,
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_build_info,
        get_version_string,
        has_collective_ops,
        preload_dlls,
        print_debug_info,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
    )
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
    from onnxtrain.ortmodule.module import ORTModule
    from onnxtrain.ortmodule.options import PropagateCastOpsStrategy, is_ortmodule_available
    from onnxtrain.runtime.io_binding import IOBinding
    from onnxtrain.runtime.options import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        RunOptions,
        SessionOptions,
        get_available_providers,
        get_device,
    )
    from onnxtrain.runtime.ort_value import OrtValue
    from onnxtrain.runtime.seeds import set_seed
    from onnxtrain.runtime.session import InferenceSession, ModelMetadata, NodeArg
    from onnxtrain.training.trainer import Trainer
    from onnxtrain.transforms.lora import LoraConfig

__version__ = "0.1.0"

_PLACES = {
    "onnxtrain.derivative": ("grad",),
    "onnxtrain.environment": (
        "copy_tensors",
        "disable_telemetry_events",
        "enable_telemetry_events",
        "get_all_providers",
        "get_build_info",
        "get_version_string",
        "has_collective_ops",
        "preload_dlls",
        "print_debug_info",
        "set_default_logger_severity",
        "set_default_logger_verbosity",
        "set_global_thread_pool_sizes",
    ),
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
    "onnxtrain.ortmodule.module": ("ORTModule",),
    "onnxtrain.ortmodule.options": ("PropagateCastOpsStrategy", "is_ortmodule_available"),
    "onnxtrain.runtime.io_binding": ("IOBinding",),
    "onnxtrain.runtime.options": (
        "ExecutionMode",
        "ExecutionOrder",
        "GraphOptimizationLevel",
        "RunOptions",
        "SessionOptions",
        "get_available_providers",
        "get_device",
    ),
    "onnxtrain.runtime.ort_value": ("OrtValue",),
    "onnxtrain.runtime.seeds": ("set_seed",),
    "onnxtrain.runtime.session": ("InferenceSession", "ModelMetadata", "NodeArg"),
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
    "ort_triton",
    "ortmodule",
    "utils",
)
_NAMES = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "CheckpointError",
    "DeviceError",
    "ExecutionMode",
    "ExecutionOrder",
    "FeedError",
    "GraphError",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "Kernel",
    "KernelRegistry",
    "LoraConfig",
    "LossError",
    "ModelError",
    "ModelMetadata",
    "NoGradientError",
    "NoKernelError",
    "NodeArg",
    "NodeError",
    "ORTModule",
    "OnnxTrainError",
    "OptionError",
    "OrtValue",
    "ParameterError",
    "PropagateCastOpsStrategy",
    "RegistrationError",
    "RunOptions",
    "SaveError",
    "SessionOptions",
    "Trainer",
    "amp",
    "api",
    "artifacts",
    "backend",
    "copy_tensors",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "experimental",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "grad",
    "gradient",
    "gradients",
    "has_collective_ops",
    "is_ortmodule_available",
    "kernel",
    "no_gradient",
    "onnxblock",
    "optim",
    "ort_triton",
    "ortmodule",
    "preload_dlls",
    "print_debug_info",
    "register_cpu_training_kernels",
    "register_cuda_training_kernels",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
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
    raise absent("onnxtrain", name)


def __dir__() -> list[str]:
    """Public names."""
    return sorted([*__all__, "__version__"])
