"""Normalization of groups of channels that keeps its statistics for the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.precision import acc, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, OWN

Three = tuple[Tensor, Tensor, Tensor]
_native_grad = torch.ops.aten.native_group_norm_backward.default
SMALLEST = 1 << 14
"""Elements from which on one launch is faster than torch's several."""


@kernel("GroupNormalized", domain=OWN, outputs=3, T=FLOATS, S=FLOATS)
def group_normalized(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5
) -> Three:
    """Y = (x - mean)·inverse·scale + bias, with the statistics of a group of channels each."""
    _check(x, scale, num_groups)
    if _is_fast(scale, x) and bias.is_contiguous():
        found: Three = fast.load("group_norm").normalize(x, scale, bias, num_groups, epsilon)
        return found
    wide, weight, shift = (widen(t).contiguous() for t in (x, scale, bias))
    samples, channels = x.shape[:2]
    if not blocks.recorded(x, scale, bias):
        places = x.shape[2:].numel()
        y, mean, inverse = torch.native_group_norm(
            wide, weight, shift, samples, channels, places, num_groups, epsilon
        )
        return y.to(x.dtype), mean, inverse
    rows = wide.reshape(samples, num_groups, -1)
    variance, mean = torch.var_mean(rows, -1, correction=0, keepdim=True)
    inverse = torch.rsqrt(variance + epsilon)
    normal = ((rows - mean) * inverse).reshape(samples, channels, -1)
    y = (normal * weight[:, None] + shift[:, None]).reshape(x.shape)
    return y.to(x.dtype), mean.squeeze(-1), inverse.squeeze(-1)


@kernel("GroupNormalizedGrad", domain=OWN, outputs=3, T=FLOATS, S=FLOATS)
def group_normalized_grad(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    mean: Tensor,
    inverse: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
) -> Three:
    """dX = inverse·(g - mean(g) - n·mean(g·n)) with g = dY·scale and n = (x - mean)·inverse.

    dScale = Σ dY·n, dBias = Σ dY for each channel.
    """
    _check(x, scale, num_groups)
    single = mean.dtype is inverse.dtype is torch.float32
    if single and _is_fast(scale, x, dy) and mean.is_contiguous() and inverse.is_contiguous():
        found: Three = fast.load("group_norm").grad(dy, x, scale, mean, inverse)
        return found
    samples, channels = x.shape[:2]
    grad, data, weight = (widen(t).contiguous() for t in (dy, x, scale))
    statistics = [t.to(acc(x.dtype)).contiguous() for t in (mean, inverse)]
    dx, dscale, dbias = _native_grad(
        grad, data, *statistics, weight, samples, channels, x.shape[2:].numel(), num_groups,
        [True, True, True],
    )  # fmt: skip
    return dx.to(x.dtype), dscale.to(scale.dtype), dbias.to(scale.dtype)


def _is_fast(scale: Tensor, x: Tensor, *others: Tensor) -> bool:
    """Whether one Triton launch serves these, in one of two orders of memory."""
    if not x.is_cuda or not fast.serves(x.get_device()) or not scale.is_contiguous():
        return False
    if not x.numel() or not fast.load("group_norm").takes(x, *others):
        return False
    dense = [t.permute(0, 2, 3, 1) if not t.is_contiguous() else t for t in (x, *others)]
    return fast.ready(*dense, smallest=SMALLEST)


def _check(x: Tensor, scale: Tensor, groups: int) -> None:
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"X of shape {tuple(x.shape)} has no {groups} groups of channels")
    if scale.shape != (x.shape[1],):
        raise ValueError(f"scale has shape {tuple(scale.shape)}, not [{x.shape[1]}]")
