"""Multiplication by constants: Scale, BatchScale, ScaledSum and MixedPrecisionScale."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.types import FLOATS, MS


@kernel("Scale", domain=MS, T=FLOATS, host=["scale"], inplace=["x"])
def scale(
    x: Tensor, scale: float | list[float], *, scale_down: int = 0, out: Tensor | None = None
) -> Tensor:
    """Y = x·s, or x / s if scale_down."""
    factor = single(scale)
    if factor == 0:
        raise ValueError("scale is 0, allowed is any other number")
    return torch.mul(x, 1 / factor if scale_down else factor, out=out)


@kernel("BatchScale", domain=MS, T=FLOATS, outputs=3)
def batch_scale(
    x: Tensor, *, scale_0: float, scale_1: float, scale_2: float | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Y_k = x·s_k."""
    return x * scale_0, x * scale_1, None if scale_2 is None else x * scale_2


@kernel("ScaledSum", domain=MS, T=FLOATS)
def scaled_sum(
    x0: Tensor,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    scale_0: float,
    scale_1: float,
    scale_2: float | None = None,
) -> Tensor:
    """Y = x₀·s₀ + x₁·s₁ + x₂·s₂; all of one shape."""
    if x1.shape != x0.shape or (x2 is not None and x2.shape != x0.shape):
        raise ValueError(f"input shapes differ from {tuple(x0.shape)}, allowed is one shape")
    total = torch.add(widen(x0) * scale_0, widen(x1), alpha=scale_1)
    if x2 is not None:
        if scale_2 is None:
            raise ValueError("scale_2 is missing, a third input needs it")
        total = torch.add(total, widen(x2), alpha=scale_2)
    return store(total, x0)


@kernel("MixedPrecisionScale", domain=MS, SrcT=FLOATS, ScaleT=FLOATS, outputs=0)
def mixed_precision_scale(s: Tensor, *xs: Tensor, to: int, fuse_outputs: int = 0) -> list[Tensor]:
    """Y_k = s·x_k in another type; all of them in one vector if fuse_outputs."""
    factor, dtype = widen(s.reshape(-1)[0]), to_torch(to)
    scaled = [(widen(x) * factor).to(dtype) for x in xs]
    return [torch.cat([y.reshape(-1) for y in scaled])] if fuse_outputs else scaled
