"""Moves between host and device, and copies; the steps that a planner adds by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.registry import Kernel, kernel


@kernel("ToDevice", domain="onnxtrain.runtime", needs=["device"], registry=None)
def to_device(x: Any, *, device: torch.device) -> Any:
    """The value on the device; the host does not wait."""
    return _each(x, lambda tensor: _lifted(tensor, device))


_WRITTEN = (torch.bool, torch.int32, torch.int64, torch.float32, torch.float64)
"""Types of numbers that a device can write by itself."""


def _lifted(x: Tensor, device: torch.device) -> Tensor:
    """A lone number is written by the device itself, which a captured graph can repeat."""
    if x.ndim == 0 and x.device.type == "cpu" and x.dtype in _WRITTEN:
        return torch.full((), x.item(), dtype=x.dtype, device=device)
    return x.to(device, non_blocking=True)


@kernel("ToHost", domain="onnxtrain.runtime", registry=None)
def to_host(x: Any) -> Any:
    """The value on the host, which waits for the device: the graph asks for it."""
    return _each(x, Tensor.cpu)


@kernel("Copy", domain="onnxtrain.runtime", registry=None)
def copy(x: Any) -> Any:
    """The value in storage of its own."""
    return _each(x, Tensor.clone)


def _each(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A function applied to a tensor, or to every tensor of a sequence; text is copied."""
    if isinstance(value, list):
        return [_each(item, function) for item in value]
    if isinstance(value, Tensor):
        return function(value)
    return None if value is None else value.copy()


def declared(fn: object) -> Kernel:
    """The kernel that a function was declared to be."""
    found: Kernel = fn.kernels[0]  # type: ignore[attr-defined]
    return found
