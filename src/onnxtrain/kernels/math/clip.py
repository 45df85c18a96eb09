"""Clip: keep values between two bounds."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.precision import (
    COMPUTED_INTEGERS,
    WIDE_UNSIGNED,
    from_order,
    in_order,
)
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS

_FLOAT32_MAX = torch.finfo(torch.float32).max


@kernel("Clip", since=6, until=10, T=FLOATS, inplace=["x"])
def clip_by_attributes(
    x: Tensor,
    *,
    min: float = -_FLOAT32_MAX,
    max: float = _FLOAT32_MAX,
    out: Tensor | None = None,
) -> Tensor:
    """Y = min(max(x, low), high), bounds beyond the type's range being its largest numbers."""
    widest = torch.finfo(x.dtype)
    low, high = (sorted((widest.min, bound, widest.max))[1] for bound in (min, max))
    return torch.clamp(x, low, high, out=out)


@kernel("Clip", since=11, T=FLOATS, inplace=["x"])
def clip(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Y = min(max(x, low), high); the bounds default to the largest finite numbers of the type."""
    widest = torch.finfo(x.dtype)
    if low is None and high is None:
        return torch.clamp(x, widest.min, widest.max, out=out)
    return torch.clamp(
        x,
        x.new_full((), widest.min) if low is None else low.reshape(()),
        x.new_full((), widest.max) if high is None else high.reshape(()),
        out=out,
    )


@kernel("Clip", since=12, T=COMPUTED_INTEGERS)
def clip_integers(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Y = min(max(x, low), high)."""
    if low is None and high is None:
        return x.clone()
    return torch.clamp(
        x,
        None if low is None else low.reshape(()),
        None if high is None else high.reshape(()),
    )


@kernel("Clip", since=12, T=WIDE_UNSIGNED)
def clip_unsigned(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Y = min(max(x, low), high)."""
    bounds = (None if bound is None else in_order(bound) for bound in (low, high))
    return from_order(clip_integers(in_order(x), *bounds), x.dtype)
