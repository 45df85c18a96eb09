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


_WRITTEN = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
"""Types of numbers that a device can write by itself."""


def _lifted(x: Tensor, device: torch.device) -> Tensor:
    """A lone number is written by the device itself, which a captured graph can repeat.

    While a graph is captured so is every number: memory of the host may not be read then.
    """
    if x.device.type == "cpu" and x.dtype in _WRITTEN:
        if x.numel() == 1:
            return torch.full(x.shape, x.item(), dtype=x.dtype, device=device)
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return _written(x, device)
    return x.to(device, non_blocking=True)


def _written(x: Tensor, device: torch.device) -> Tensor:
    result = torch.empty(x.shape, dtype=x.dtype, device=device)
    flat = result.view(-1)
    for index, number in enumerate(x.reshape(-1).tolist()):
        flat[index].fill_(number)
    return result


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
