"""Normalization of instances, groups, neighbours, vectors and whole tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import ALL_BUT_CHANNELS, FLOATS


@kernel("InstanceNormalization", T=FLOATS)
def instance_normalization(
    input: Tensor,
    scale: Tensor,
    b: Tensor,
    *,
    consumed_inputs: Sequence[int] | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    """y = (x - mean) / sqrt(var + epsilon) * scale + b over the spatial axes of each channel."""
    return grouped(input, scale, b, input.shape[1], epsilon)


@kernel("GroupNormalization", since=18, until=20, T=FLOATS)
def group_normalization_18(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int
) -> Tensor:
    """InstanceNormalization over groups of channels, with a scale and a bias for each group."""
    size = x.shape[1] // num_groups
    weight, shift = (t.repeat_interleave(size, output_size=x.shape[1]) for t in (scale, bias))
    return grouped(x, weight, shift, num_groups, epsilon)


@kernel("GroupNormalization", since=21, T=FLOATS)
def group_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
) -> Tensor:
    """InstanceNormalization over groups of channels, with a scale and a bias for each channel."""
    return grouped(x, scale, bias, num_groups, epsilon)


@kernel("LRN", T=FLOATS)
def lrn(
    x: Tensor, *, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0, size: int
) -> Tensor:
    """y = x / (bias + alpha / size * (sum of x^2 over the ``size`` nearest channels))^beta."""
    if size < 1:
        raise ValueError(f"size is {size}, must be at least 1")
    if not x.numel():
        return torch.empty_like(x)
    wide = widen(x)
    before, after = (size - 1) // 2, size // 2
    padding = [0, 0] * (x.ndim - 2) + [before, after]
    near = F.pad(wide.square(), padding).unfold(1, size, 1).sum(-1)
    return (wide * (near * (alpha / size) + bias).pow(-beta)).to(x.dtype)


@kernel("LpNormalization", T=FLOATS)
def lp_normalization(input: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """y = x / |x|_p along the axis, and 0 where the norm is 0."""
    if p not in (1, 2):
        raise ValueError(f"p is {p}, must be 1 or 2")
    wide = widen(input)
    norm = torch.linalg.vector_norm(wide, p, axis, keepdim=True)
    return torch.where(norm == 0, 0.0, wide / norm).to(input.dtype)


@kernel("MeanVarianceNormalization", since=9, T=FLOATS)
def mean_variance_normalization(x: Tensor, *, axes: Sequence[int] = ALL_BUT_CHANNELS) -> Tensor:
    """y = (x - mean) / (sqrt(var) + 1e-9) over the axes."""
    axes = [axis for axis in axes if tuple(axes) != ALL_BUT_CHANNELS or axis < x.ndim]
    if not all(-x.ndim <= axis < x.ndim for axis in axes):
        raise ValueError(f"axes are {axes}, must be from {-x.ndim} to {x.ndim - 1}")
    std, mean = torch.std_mean(widen(x), axes, correction=0, keepdim=True)
    return ((widen(x) - mean) / (std + 1e-9)).to(x.dtype)


def grouped(x: Tensor, scale: Tensor, bias: Tensor, groups: int, epsilon: float) -> Tensor:
    """Normalize each group of channels of each sample, then scale and shift each channel."""
    batch, channels = x.shape[:2]
    if channels % max(groups, 1):
        raise ValueError(f"{channels} channels cannot be split into num_groups = {groups}")
    for name, parameter in (("scale", scale), ("bias", bias)):
        if parameter.shape != (channels,):
            raise ValueError(f"{name} has shape {tuple(parameter.shape)}, not [{channels}]")
    if not channels:
        return torch.empty_like(x)
    data = x if x.is_cuda else widen(x)  # the CPU would keep 16-bit statistics
    weight, shift = (t.to(data.dtype).contiguous() for t in (scale, bias))
    places = math.prod(x.shape[2:])
    y, _, _ = torch.native_group_norm(
        data.contiguous(), weight, shift, batch, channels, places, groups, epsilon
    )
    return y.to(x.dtype)
