"""Gelu: exact, by tanh, by a sigmoid; with a bias; and their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.activation.native import backward, forward
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS

aten = torch.ops.aten

_QUICK = 1.7020000219345093
"""1.702 as the schema stores it, in float32."""


@kernel("Gelu", since=20, T=FLOATS, inplace=["x"])
def gelu(x: Tensor, *, approximate: str = "none", out: Tensor | None = None) -> Tensor:
    """Y = x·Φ(x), or x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))) if approximate is tanh."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is {approximate!r}, allowed are 'none' and 'tanh'")
    if x.ndim and fast.ready(x, smallest=1, images=True):
        return _pointwise(x, None, approximate, out=out)
    return forward(aten.gelu, x, approximate=approximate, out=out)


@kernel("Gelu", domain=MS, T=FLOATS, inplace=["x"])
def gelu_exact(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Y = x·Φ(x)."""
    return gelu(x, out=out)


@kernel("GeluGrad", domain=MS, T=FLOATS, inplace=["dy", "x"])
def gelu_grad(dy: Tensor, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """dX = dY·(Φ(x) + x·φ(x))."""
    if _fast_alone(dy, x):
        return _pointwise_grad(dy, x, None, "none", out=out)
    return backward(aten.gelu_backward, dy, x, approximate="none", out=out)


@kernel("BiasGelu", domain=MS, T=FLOATS)
def bias_gelu(a: Tensor, b: Tensor) -> Tensor:
    """C = Gelu(a + b), b along the last axis."""
    if _fast(a, a, b):
        return _pointwise(a, b, "none")
    total = a + b
    return gelu(total, out=None if blocks.recorded(total) else total)


@kernel("BiasGeluGrad_dX", domain=MS, T=FLOATS, inplace=["dy"])
def bias_gelu_grad(dy: Tensor, x: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """dX = GeluGrad(dY, x + b)."""
    _check_bias(dy, x, b)
    if _fast(dy, x, b):
        return _pointwise_grad(dy, x, b, "none", out=out)
    total = x + b
    return gelu_grad(dy, total, out=total if out is None else out)


@kernel("FastGelu", domain=MS, T=FLOATS)
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Y = Gelu(x + bias) by tanh."""
    if bias is None:
        return gelu(x, approximate="tanh")
    if _fast(x, x, bias):
        return _pointwise(x, bias, "tanh")
    total = x + bias
    return gelu(total, approximate="tanh", out=None if blocks.recorded(total) else total)


@kernel("FastGeluGrad", domain=MS, T=FLOATS, inplace=["dy", "x"])
def fast_gelu_grad(dy: Tensor, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """dX = dY·(1 + t + x·(1 - t²)·√(2/π)·(1 + 0.134145·x²)) / 2, t being Gelu's tanh."""
    if _fast_alone(dy, x):
        return _pointwise_grad(dy, x, None, "tanh", out=out)
    return backward(aten.gelu_backward, dy, x, approximate="tanh", out=out)


@kernel("BiasFastGeluGrad_dX", domain=MS, T=FLOATS, inplace=["dy"])
def bias_fast_gelu_grad(dy: Tensor, x: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """dX = FastGeluGrad(dY, x + b)."""
    _check_bias(dy, x, b)
    if _fast(dy, x, b):
        return _pointwise_grad(dy, x, b, "tanh", out=out)
    total = x + b
    return fast_gelu_grad(dy, total, out=total if out is None else out)


def _fast_alone(dy: Tensor, x: Tensor) -> bool:
    """Whether one Triton launch serves these: they lie alike."""
    return x.ndim > 0 and dy.shape == x.shape and fast.ready(dy, x, smallest=1, images=True)


def _fast(dy: Tensor, x: Tensor, b: Tensor) -> bool:
    """Whether one Triton launch serves these: b is as long as the last axis, and dense.

    However few elements there are, it is less than two launches of torch's.
    """
    fits = x.ndim > 0 and b.shape == x.shape[-1:] and b.is_contiguous()
    return fits and not blocks.recorded(b) and fast.ready(dy, x, smallest=1)


def _pointwise(
    x: Tensor, b: Tensor | None, kind: str, alpha: float = 1.0, out: Tensor | None = None
) -> Tensor:
    found: Tensor = fast.load("pointwise").gelu(x, b, kind, alpha, out)
    return found


def _pointwise_grad(
    dy: Tensor,
    x: Tensor,
    b: Tensor | None,
    kind: str,
    alpha: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    found: Tensor = fast.load("pointwise").gelu_grad(dy, x, b, kind, alpha, out)
    return found


def _check_bias(dy: Tensor, x: Tensor, b: Tensor) -> None:
    if dy.shape != x.shape:
        raise ValueError(f"dY has shape {tuple(dy.shape)}, allowed is that of X, {tuple(x.shape)}")
    if x.ndim == 0 or b.shape != x.shape[-1:]:
        raise ValueError(
            f"B has shape {tuple(b.shape)}, allowed is that of the last axis of X, {tuple(x.shape)}"
        )


@kernel("QuickGelu", domain=MS, T=FLOATS, inplace=["x"])
def quick_gelu(x: Tensor, *, alpha: float = _QUICK, out: Tensor | None = None) -> Tensor:
    """Y = x·sigmoid(α·x)."""
    if x.ndim and fast.ready(x, smallest=1, images=True):
        return _pointwise(x, None, "quick", alpha, out)
    return blocks.apply(lambda x: quick_value(x, alpha), x, out=out)


def quick_value(x: Tensor, alpha: float) -> Tensor:
    """x·sigmoid(α·x) in the type of computation."""
    wide = widen(x)
    if alpha == 1.0:
        found: Tensor = aten.silu.default(wide)
        return found
    return (wide * alpha).sigmoid_().mul_(wide)


@kernel("QuickGeluGrad", domain=MS, T=FLOATS, inplace=["dy", "x"])
def quick_gelu_grad(
    dy: Tensor, x: Tensor, *, alpha: float = _QUICK, out: Tensor | None = None
) -> Tensor:
    """dX = dY·s·(1 + v·(1 - s)) with v = α·x and s = sigmoid(v)."""
    if _fast_alone(dy, x):
        return _pointwise_grad(dy, x, None, "quick", alpha, out)
    return blocks.apply(lambda dy, x: quick_slope(dy, x, alpha), dy, x, out=out)


def quick_slope(dy: Tensor, x: Tensor, alpha: float) -> Tensor:
    """dY times its slope in the type of computation."""
    v = widen(x) if alpha == 1.0 else widen(x) * alpha
    if not blocks.recorded(dy, x):
        dx: Tensor = aten.silu_backward.default(widen(dy), v)
        return dx
    s = torch.sigmoid(v)  # torch cannot go back through a gradient of its own
    return (1 - s).mul_(v).add_(1).mul_(s).mul_(widen(dy))
