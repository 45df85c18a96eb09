"""Sigmoid, Softplus, Swish and other functions of one number, and their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.activation.native import backward, forward
from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS

aten = torch.ops.aten


@kernel("Sigmoid", since=6, T=FLOATS, inplace=["x"])
def sigmoid(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Y = 1 / (1 + e⁻ˣ)."""
    return torch.sigmoid(x, out=out)


@kernel("SigmoidGrad", domain=MS, T=FLOATS, inplace=["dy", "y"])
def sigmoid_grad(dy: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """dX = dY·y·(1 - y), from the output y."""
    return backward(aten.sigmoid_backward, dy, y, out=out)


@kernel("TanhGrad", domain=MS, T=FLOATS, inplace=["dy", "y"])
def tanh_grad(dy: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """dX = dY·(1 - y²), from the output y."""
    return backward(aten.tanh_backward, dy, y, out=out)


@kernel("Softplus", T=FLOATS, inplace=["x"])
def softplus(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Y = ln(1 + eˣ); from 80 on that is x in every type, and eˣ would soon overflow."""
    return forward(aten.softplus, x, 1, 80, out=out)


@kernel("Softsign", T=FLOATS, inplace=["x"])
def softsign(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Y = x / (1 + |x|)."""
    wide = widen(x)
    return store(wide / (1 + wide.abs()), x, out)


@kernel("HardSigmoid", since=6, T=FLOATS, inplace=["x"])
def hard_sigmoid(
    x: Tensor,
    *,
    alpha: float = 0.20000000298023224,
    beta: float = 0.5,
    out: Tensor | None = None,
) -> Tensor:
    """Y = max(0, min(1, α·x + β))."""
    return store((widen(x) * alpha).add_(beta).clamp_(0, 1), x, out)


@kernel("HardSwish", since=14, T=FLOATS, inplace=["x"])
def hard_swish(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Y = x·max(0, min(1, x/6 + 1/2))."""
    if x.dtype is torch.float64:
        # torch's own operator has 1/6 in float32 on CUDA.
        return torch.mul((x / 6).add_(0.5).clamp_(0, 1), x, out=out)
    return forward(aten.hardswish, x, out=out)


@kernel("Mish", since=18, T=FLOATS, inplace=["x"])
def mish(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Y = x·tanh(ln(1 + eˣ))."""
    return forward(aten.mish, x, out=out)


@kernel("Swish", since=24, T=FLOATS, inplace=["x"])
def swish(x: Tensor, *, alpha: float = 1.0, out: Tensor | None = None) -> Tensor:
    """Y = x·sigmoid(α·x)."""
    if alpha == 1:
        return forward(aten.silu, x, out=out)
    wide = widen(x)
    return store(torch.sigmoid(wide * alpha).mul_(wide), x, out)


@kernel("SwiGLU", since=28, T=FLOATS, inplace=["a", "b"])
def swi_glu(a: Tensor, b: Tensor, *, alpha: float = 1.0, out: Tensor | None = None) -> Tensor:
    """Y = a·sigmoid(α·a)·b."""
    if a.shape != b.shape:
        raise ValueError(
            f"shapes {tuple(a.shape)} and {tuple(b.shape)} differ, allowed is one shape"
        )
    return store(swish(widen(a), alpha=alpha).mul_(widen(b)), a, out)
