"""Triton functions of users, which TritonOp nodes call; the counterpart of ``ort_triton``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from onnxtrain.kernels.interop.registry import register_triton_function

__all__ = ["register_triton_kernel"]

F = TypeVar("F", bound=Callable[..., Any])


def register_triton_kernel(fn: F) -> F:
    """Let TritonOp nodes call a function of tensors and attributes, whose name is ``func_name``."""
    register_triton_function(fn.__name__, fn)
    return fn
