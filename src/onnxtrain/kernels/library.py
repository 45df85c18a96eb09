"""All families of kernels, and the registries made of them."""

from __future__ import annotations

import functools
import importlib

from onnxtrain.kernels.registry import DECLARED, Kernel, KernelRegistry
from onnxtrain.types import CPU, CUDA, ML, ONNX

FAMILIES = (
    "activation",
    "attention",
    "collective",
    "communication",
    "control",
    "control_flow",
    "gist",
    "interop",
    "loss",
    "math",
    "ml",
    "ms",
    "nn",
    "optimizer",
    "quantization",
    "reduction",
    "sequence",
    "signal",
    "summary",
    "tensor",
    "text",
    "transformer",
    "vector_jacobian",
    "vision",
)
TRAINING_IN_ONNX_DOMAIN = frozenset(
    {
        "AveragePoolGrad",
        "MaxPoolGrad",
        "SimplifiedLayerNormalization",
        "SoftmaxCrossEntropyLoss",
        "SparseSoftmaxCrossEntropy",
        "SparseSoftmaxCrossEntropyGrad",
    }
)
"""Operators of ONNX's own domain whose kernels the reference ships with training."""


@functools.cache
def declared_kernels() -> tuple[Kernel, ...]:
    """Every kernel of the package."""
    for family in FAMILIES:
        importlib.import_module(f"onnxtrain.kernels.{family}")
    return tuple(DECLARED.kernels())


@functools.cache
def default_registry() -> KernelRegistry:
    """The registry that sessions use unless they are given another: everything there is."""
    return KernelRegistry(declared_kernels())


def is_training(item: Kernel) -> bool:
    """Whether a kernel is one of a training operator (not of ONNX's own)."""
    return item.domain not in (ONNX, ML) or item.op in TRAINING_IN_ONNX_DOMAIN


def register_cpu_training_kernels(registry: KernelRegistry) -> None:
    """Make all training operators available to CPU sessions that use the registry."""
    for item in declared_kernels():
        if is_training(item) and CPU in item.on:
            registry.add(item)


def register_cuda_training_kernels(registry: KernelRegistry) -> None:
    """Make all training operators available to CUDA sessions that use the registry."""
    for item in declared_kernels():
        if is_training(item) and CUDA in item.on:
            registry.add(item)
