"""Normalization by the root of the mean square, and its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.nn.layer_norm import (
    fast_norm,
    normalized_shape,
    precise,
    residual_sum,
    row_shape,
    scale_grad,
    statistic,
)
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import kept_size
from onnxtrain.types import FLOATS, MS

SMALLEST = 1 << 16
"""Elements from which on one launch is faster than torch's several."""


@kernel("RMSNormalization", since=23, T=FLOATS, V=FLOATS)
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    """y = x * inv * scale, with inv = 1 / sqrt(mean(x^2) + epsilon)."""
    return simplified_layer_normalization(
        x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type
    )[0]


@kernel("SimplifiedLayerNormalization", outputs=2, T=FLOATS, V=FLOATS)
def simplified_layer_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, Tensor]:
    """RMSNormalization that also returns inv."""
    stash = to_torch(stash_type)
    if fast_norm(x, scale, None, axis, stash, smallest=SMALLEST):
        found = fast.load("norm").normalize(
            x, scale, None, epsilon, centred=False, dtype=scale.dtype
        )
        return found.y, found.inverse.view(row_shape(x, axis))
    x = precise(x, stash)
    if scale.shape != normalized_shape(x, axis) or not blocks.ready(x, scale):
        y, inverse = normalize(x, scale, axis, epsilon)
        return y.to(scale.dtype), inverse.to(stash)
    y = torch.empty_like(x, dtype=scale.dtype)
    inverse = torch.empty(row_shape(x, axis), dtype=stash)
    for part, *found in blocks.rows(inverse.numel(), x, y, inverse):
        for target, value in zip(found, normalize(part, scale.view(-1), 1, epsilon), strict=True):
            target.copy_(value)
    return y, inverse


@kernel("SkipSimplifiedLayerNormalization", domain=MS, outputs=4, T=FLOATS)
def skip_simplified_layer_normalization(
    input: Tensor,
    skip: Tensor,
    gamma: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """RMSNormalization of s = input + skip + bias over the last axis; s is the last output.

    The mean is not subtracted, but the operator has an output for it.
    """
    total = residual_sum(input, skip, bias)
    y, inverse = normalize(total, gamma, -1, epsilon)
    mean = total.mean(-1, keepdim=True)
    return y.to(input.dtype), mean.float(), inverse.float(), total.to(input.dtype)


@kernel("SimplifiedLayerNormalizationGrad", domain=MS, outputs=2, T=FLOATS, V=FLOATS)
def simplified_layer_normalization_grad(
    y_grad: Tensor,
    x: Tensor,
    scale: Tensor,
    inv_std_var: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, Tensor]:
    """dx = inv * (g - xhat * mean(g * xhat)), with g = dy * scale and xhat = x * inv."""
    sizes = normalized_shape(x, axis)
    if (
        fast.ready(x, y_grad, smallest=SMALLEST)
        and scale.shape == sizes
        and inv_std_var.dtype is torch.float32
        and (quick := fast.load("norm_grad")).takes(scale, inv_std_var)
    ):
        quick_dx, sums = quick.norm_grad(y_grad, x, scale, None, inv_std_var)
        return quick_dx, sums.view(scale.shape)
    inverse = statistic(inv_std_var, x, len(sizes))
    if inv_std_var.dtype.itemsize < inverse.dtype.itemsize:
        # a stashed value that is coarser than the data would cost the gradient its precision
        axes = list(range(x.ndim - len(sizes), x.ndim))
        inverse = inverse_root(widen(x), axes, epsilon)
    if scale.shape != sizes or not blocks.ready(x, y_grad, inverse, scale):
        dx, dscale = _grad(y_grad, x, scale, inverse, sizes)
        return dx.to(x.dtype), dscale.sum_to_size(scale.shape).to(scale.dtype)
    dx, flat, sums = torch.empty_like(x), scale.view(-1), []
    for target, dy, part, each in blocks.rows(inverse.numel(), dx, y_grad, x, inverse):
        found, total = _grad(dy, part, flat, each, flat.shape)
        target.copy_(found)
        sums.append(total)
    return dx, torch.stack(sums).sum(0).view(sizes).to(scale.dtype)


def _grad(
    dy: Tensor, x: Tensor, scale: Tensor, inverse: Tensor, sizes: torch.Size
) -> tuple[Tensor, Tensor]:
    """dx, and the gradient of a scale of these sizes, in the type of computation."""
    axes = list(range(x.ndim - len(sizes), x.ndim))
    grad, normal = widen(dy), widen(x) * inverse
    inner = grad * scale
    dx = inverse * (inner - normal * (inner * normal).mean(axes, keepdim=True))
    return dx, scale_grad(grad * normal, sizes)


def normalize(x: Tensor, scale: Tensor, axis: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """y and inv in the type of computation."""
    sizes = normalized_shape(x, axis)
    wide = widen(x)
    inverse = inverse_root(wide, list(range(x.ndim - len(sizes), x.ndim)), epsilon)
    return kept_size(wide * inverse * scale, x, "scale"), inverse


def inverse_root(x: Tensor, axes: list[int], epsilon: float) -> Tensor:
    """1 / sqrt(mean(x^2) + epsilon)."""
    return torch.rsqrt(x.square().mean(axes, keepdim=True) + epsilon)
