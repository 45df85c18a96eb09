"""Normalization of groups of channels that keeps its statistics for the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.activation.gelu import quick_slope
from onnxtrain.kernels.layout import layout_of
from onnxtrain.kernels.precision import acc, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, OWN

Three = tuple[Tensor, Tensor, Tensor]
_native_grad = torch.ops.aten.native_group_norm_backward.default
SMALLEST = 1 << 14
"""Elements from which on one launch is faster than torch's several."""
ACTIVATIONS = ("none", "relu", "swish")


@kernel("GroupNormalized", domain=OWN, outputs=3, T=FLOATS, S=FLOATS)
def group_normalized(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    activation: str = "none",
    alpha: float = 1.0,
) -> Three:
    """Y = act((x - mean)·inverse·scale + bias), with the statistics of a group of channels each.

    An activation is a ``relu``, or ``swish``, which is v·sigmoid(α·v).
    """
    _check(x, scale, num_groups, activation, bias)
    if _is_fast(x) and _are_dense(scale, bias):
        given = x, scale, bias, num_groups, epsilon, activation, alpha
        found: Three = fast.load("group_norm").normalize(*given)
        return found
    weight, shift = (widen(t).contiguous() for t in (scale, bias))
    # torch takes images with their channels last on a CPU alone
    layout = layout_of(x) if x.is_cpu else torch.contiguous_format
    wide = widen(x).contiguous(memory_format=layout)
    samples, channels = x.shape[:2]
    if not blocks.recorded(x, scale, bias):
        places = x.shape[2:].numel()
        y, mean, inverse = torch.native_group_norm(
            wide, weight, shift, samples, channels, places, num_groups, epsilon
        )
        return _activated(y, activation, alpha).to(x.dtype), mean, inverse
    rows = wide.reshape(samples, num_groups, -1)
    variance, mean = torch.var_mean(rows, -1, correction=0, keepdim=True)
    inverse = torch.rsqrt(variance + epsilon)
    normal = ((rows - mean) * inverse).reshape(samples, channels, -1)
    y = (normal * weight[:, None] + shift[:, None]).reshape(x.shape)
    y = _activated(y, activation, alpha)
    return y.to(x.dtype), mean.squeeze(-1), inverse.squeeze(-1)


@kernel("GroupNormalizedGrad", domain=OWN, outputs=3, T=FLOATS, S=FLOATS)
def group_normalized_grad(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    mean: Tensor,
    inverse: Tensor,
    bias: Tensor | None = None,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    activation: str = "none",
    alpha: float = 1.0,
) -> Three:
    """dX = inverse·(g - mean(g) - n·mean(g·n)) with g = dY·scale and n = (x - mean)·inverse.

    dScale = Σ dY·n, dBias = Σ dY for each channel. With an activation, dY is first multiplied by
    its slope at n·scale + bias.
    """
    _check(x, scale, num_groups, activation, bias)
    if activation != "none" and bias is None:
        raise ValueError(f"the gradient of a normalization with a {activation} needs its bias")
    single = mean.dtype is inverse.dtype is torch.float32
    if x.is_cuda and x.ndim == 4:
        dy = dy.contiguous(memory_format=layout_of(x))
    if single and _is_fast(x, dy) and _are_dense(scale, mean, inverse, bias):
        given = dy, x, scale, mean, inverse, bias, activation, alpha
        found: Three = fast.load("group_norm").grad(*given)
        return found
    samples, channels = x.shape[:2]
    grad, data, weight = (widen(t).contiguous() for t in (dy, x, scale))
    statistics = [t.to(acc(x.dtype)).contiguous() for t in (mean, inverse)]
    if activation != "none" and bias is not None:
        rows = data.view(samples, num_groups, -1)
        normal = (rows - statistics[0][..., None]) * statistics[1][..., None]
        by_channel = normal.view(samples, channels, -1)
        line = by_channel * weight[:, None] + widen(bias)[:, None]
        grad = _slope(grad, line.view(x.shape), activation, alpha)
    dx, dscale, dbias = _native_grad(
        grad, data, *statistics, weight, samples, channels, x.shape[2:].numel(), num_groups,
        [True, True, True],
    )  # fmt: skip
    return dx.to(x.dtype), dscale.to(scale.dtype), dbias.to(scale.dtype)


def _activated(y: Tensor, activation: str, alpha: float) -> Tensor:
    if activation == "none":
        return y
    return torch.relu(y) if activation == "relu" else y * torch.sigmoid(y * alpha)


def _slope(dy: Tensor, y: Tensor, activation: str, alpha: float) -> Tensor:
    """dY times the slope of the activation at y."""
    return torch.where(y > 0, dy, 0) if activation == "relu" else quick_slope(dy, y, alpha)


def _are_dense(*tensors: Tensor | None) -> bool:
    """Whether Triton may read these vectors, of which autograd must not know."""
    there = [t for t in tensors if t is not None]
    return all(t.is_contiguous() for t in there) and not blocks.recorded(*there)


def _is_fast(x: Tensor, *others: Tensor) -> bool:
    """Whether one Triton launch serves these, in one of two orders of memory."""
    if not x.is_cuda or not fast.serves(x.get_device()):
        return False
    if not x.numel() or not fast.load("group_norm").takes(x, *others):
        return False
    dense = [t.permute(0, 2, 3, 1) if not t.is_contiguous() else t for t in (x, *others)]
    return fast.ready(*dense, smallest=SMALLEST)


def _check(
    x: Tensor, scale: Tensor, groups: int, activation: str, bias: Tensor | None = None
) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}, allowed are {', '.join(ACTIVATIONS)}")
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"X of shape {tuple(x.shape)} has no {groups} groups of channels")
    if scale.shape != (x.shape[1],):
        raise ValueError(f"scale has shape {tuple(scale.shape)}, not [{x.shape[1]}]")
    if bias is not None and bias.shape != scale.shape:
        raise ValueError(f"bias has shape {tuple(bias.shape)}, not [{x.shape[1]}]")
