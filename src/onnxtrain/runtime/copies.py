"""Moves between host and device, and copies; the steps that a planner adds by itself."""

from __future__ import annotations

import torch

from onnxtrain.kernels.registry import Kernel, kernel


@kernel("ToDevice", domain="onnxtrain.runtime", needs=["device"], registry=None)
def to_device(x: torch.Tensor, *, device: torch.device) -> torch.Tensor:
    """The value on the device; the host does not wait."""
    return x.to(device, non_blocking=True)


@kernel("ToHost", domain="onnxtrain.runtime", registry=None)
def to_host(x: torch.Tensor) -> torch.Tensor:
    """The value on the host, which waits for the device: the graph asks for it."""
    return x.cpu()


@kernel("Copy", domain="onnxtrain.runtime", registry=None)
def copy(x: torch.Tensor) -> torch.Tensor:
    """The value in storage of its own."""
    return [copy(item) for item in x] if isinstance(x, list) else x.clone()


def declared(fn: object) -> Kernel:
    """The kernel that a function was declared to be."""
    found: Kernel = fn.kernels[0]  # type: ignore[attr-defined]
    return found
