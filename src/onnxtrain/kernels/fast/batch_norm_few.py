"""Batch normalization of channels with few elements: one program holds all of them.

They are read once, and one launch does it all.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.batch_norm_steps import (
    Running,
    before,
    inverse_deviation,
    move,
    of_channel,
    passed,
    store_slopes,
    store_statistics,
    write_held,
    write_held_grad,
)
from onnxtrain.kernels.fast.common.approx import product
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv, power, warps

MOST = 16384
"""Elements that a program holds."""
SIDE_BY_SIDE = {2: 4, 4: 8}
"""Channels of a program where these lie side by side, by the bytes of an element."""
SIDE_BY_SIDE_WARPS = 8


@triton.jit
def _elements(
    rows, channels, PLANE: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr, W: tl.constexpr
):
    """Channels of this program, which of them there are, and places of their elements."""
    channel = tl.program_id(0) * W + tl.arange(0, W)
    row = tl.arange(0, R)
    if LAST:
        at = row[:, None] * channels + channel[None, :]
    else:
        at = (row // PLANE * channels)[:, None] + channel[None, :]
        at = at * PLANE + (row % PLANE)[:, None]
    fits = channel < channels
    return channel, fits, at, (row < rows)[:, None] & fits[None, :]


@Compiled
@triton.jit
def _train(
    y,
    statistics,
    x,
    scale,
    shift,
    residual,
    old_mean,
    old_variance,
    rows,
    channels,
    PLANE: tl.constexpr,
    epsilon,
    momentum,
    unbiased,
    LAST: tl.constexpr,
    RELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RUNNING: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
):
    channel, fits, at, mask = _elements(rows, channels, PLANE, LAST, R, W)
    value = tl.load(x + at, mask, 0.0).to(tl.float32)
    weight, summand = of_channel(scale, channel, fits), of_channel(shift, channel, fits)
    old = before(old_mean, old_variance, channel, fits, RUNNING)
    mean = tl.sum(value, 0) / rows
    value = tl.where(mask, value - mean[None, :], 0.0)
    variance = tl.sum(product(value, value), 0) / rows
    inverse = inverse_deviation(variance, epsilon)
    factor = (weight * inverse)[None, :]
    write_held(y, value, residual, at, mask, factor, summand[None, :], RELU, RESIDUAL)
    store_statistics(statistics, mean, variance, inverse, channels, channel, fits)
    if RUNNING:
        move(old_mean, old_variance, old, mean, variance, momentum, unbiased, channel, fits)


@Compiled
@triton.jit
def _grad(
    dx,
    dscale,
    dbias,
    dy,
    x,
    scale,
    shift,
    mean,
    inverse,
    rows,
    channels,
    PLANE: tl.constexpr,
    LAST: tl.constexpr,
    RELU: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
):
    channel, fits, at, mask = _elements(rows, channels, PLANE, LAST, R, W)
    inv = of_channel(inverse, channel, fits)
    factor = of_channel(scale, channel, fits) * inv
    add = of_channel(shift, channel, fits)
    grad = tl.load(dy + at, mask, 0.0).to(tl.float32)
    value = tl.load(x + at, mask, 0.0).to(tl.float32) - of_channel(mean, channel, fits)[None, :]
    grad = passed(grad, value, factor[None, :], add[None, :], RELU)
    total = tl.sum(grad, 0)
    slope = tl.sum(product(grad, value), 0) * inv
    write_held_grad(dx, grad, value, at, mask, factor, inv, total, slope, rows)
    store_slopes(dscale, dbias, slope, total, channel, fits)


def _size(x: Tensor, last: bool) -> tuple[int, int]:
    """Elements of a channel, and how many of them lie side by side."""
    plane = math.prod(x.shape[2:])
    return x.shape[0] * plane, 1 if last else plane


def takes(x: Tensor, last: bool) -> bool:
    """Whether a program holds the channels that it is for."""
    return power(_size(x, last)[0]) * _together(x, last) <= MOST


def _together(x: Tensor, last: bool) -> int:
    """Channels of a program."""
    return SIDE_BY_SIDE[x.dtype.itemsize] if last else 1


def _warps(rows: int, wide: int) -> int:
    """Warps of a program."""
    return warps(power(rows) * wide, most=16 if wide == 1 else SIDE_BY_SIDE_WARPS)


def train(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    epsilon: float,
    relu: bool,
    residual: Tensor | None,
    running: Running | None,
    last: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, mean, biased variance and 1 / deviation."""
    (rows, plane), channels = _size(x, last), x.shape[1]
    y, wide = torch.empty_like(x), _together(x, last)
    found = torch.empty((3, channels), dtype=torch.float32, device=x.device)
    moved = running or Running(scale, scale, 0.0, 0.0)
    _train[(cdiv(channels, wide),)](
        *(y, found, x, scale, shift, x if residual is None else residual),
        *(moved.mean, moved.variance, rows, channels, plane),
        *(epsilon, moved.momentum, moved.unbiased),
        *(last, relu, residual is not None, running is not None, power(rows), wide),
        num_warps=_warps(rows, wide),
    )
    return y, found[0], found[1], found[2]


def grad(
    results: tuple[Tensor, Tensor, Tensor],
    dy: Tensor,
    x: Tensor,
    line: tuple[Tensor, ...],
    relu: bool,
    last: bool,
) -> None:
    """Write dx, dscale and dbias, of scale, shift, mean and 1 / deviation."""
    (rows, plane), channels = _size(x, last), x.shape[1]
    wide = _together(x, last)
    _grad[(cdiv(channels, wide),)](
        *(*results, dy, x, *line, rows, channels, plane),
        *(last, relu, power(rows), wide),
        num_warps=_warps(rows, wide),
    )
