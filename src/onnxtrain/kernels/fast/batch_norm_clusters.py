"""Batch normalization of a few thousand elements a channel, channels last: one cluster holds them.

The programs of a cluster have the same channels and a part of their elements each, which they read
once and keep until they know the sums of all.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

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
from onnxtrain.kernels.fast.common.cluster import InClusters, largest
from onnxtrain.kernels.fast.common.cluster_pairs import opened, swapped
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import both_sums, cdiv, multiprocessors, power, warps

CHANNELS = 16
"""Channels of a program."""
LEAST = {2: 512, 4: 1024}
"""Fewest elements of a channel, by the bytes of one: of less than that a program holds all."""
ROWS, FEWER_ROWS = 256, 128
"""Rows of a program, or fewer if multiprocessors would be idle."""
MOST, MOST_AT_ONCE = 4096, 16384
"""Most elements of a channel, and of one where all clusters run at once."""
ALL = 1 << 21
"""Most elements of a tensor: of more, clusters after clusters take longer than two passes."""
PER_THREAD, WARPS = 64, 4
"""Elements of a thread at most, and fewest warps."""


@triton.jit
def _elements(rows, channels, P: tl.constexpr, R: tl.constexpr, W: tl.constexpr):
    """Channels of this program, which of them there are, and places of their elements."""
    channel = tl.program_id(0) // P * W + tl.arange(0, W)
    row = tl.program_id(0) % P * R + tl.arange(0, R)
    fits = channel < channels
    at = row[:, None] * channels + channel[None, :]
    return channel, fits, at, (row < rows)[:, None] & fits[None, :]


@triton.jit
def _moments(value, mask, box, rows, P: tl.constexpr, R: tl.constexpr, W: tl.constexpr):
    """Means and variances of channels, by those of each program's elements."""
    count = tl.minimum(tl.maximum(rows - tl.program_id(0) % P * R, 1), R)
    mean = tl.sum(value, 0) / count
    apart = tl.where(mask, value - mean[None, :], 0.0)
    means, squares = swapped(box, mean, tl.sum(apart * apart, 0), P, W)
    counts = tl.minimum(tl.maximum(rows - tl.arange(0, P) * R, 0), R).to(tl.float32)[:, None]
    mean = tl.sum(product(counts, means), 0) / rows
    apart = means - mean[None, :]
    return mean, tl.sum(squares + counts * apart * apart, 0) / rows


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
    epsilon,
    momentum,
    unbiased,
    RELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RUNNING: tl.constexpr,
    P: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
):
    channel, fits, at, mask = _elements(rows, channels, P, R, W)
    value = tl.load(x + at, mask, 0.0).to(tl.float32)
    weight, summand = of_channel(scale, channel, fits), of_channel(shift, channel, fits)
    leads = fits & (tl.program_id(0) % P == 0)
    old = before(old_mean, old_variance, channel, leads, RUNNING)
    mean, variance = _moments(value, mask, opened(P, W), rows, P, R, W)
    inverse = inverse_deviation(variance, epsilon)
    value, factor = value - mean[None, :], (weight * inverse)[None, :]
    write_held(y, value, residual, at, mask, factor, summand[None, :], RELU, RESIDUAL)
    store_statistics(statistics, mean, variance, inverse, channels, channel, leads)
    if RUNNING:
        move(old_mean, old_variance, old, mean, variance, momentum, unbiased, channel, leads)


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
    RELU: tl.constexpr,
    P: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
):
    channel, fits, at, mask = _elements(rows, channels, P, R, W)
    grad = tl.load(dy + at, mask, 0.0).to(tl.float32)
    value = tl.load(x + at, mask, 0.0).to(tl.float32)
    inv, middle = of_channel(inverse, channel, fits), of_channel(mean, channel, fits)
    factor, add = of_channel(scale, channel, fits) * inv, of_channel(shift, channel, fits)
    box = opened(P, W)
    value -= middle[None, :]
    grad = passed(grad, value, factor[None, :], add[None, :], RELU)
    total, slope = both_sums(grad, grad * value, 0, True)
    totals, slopes = swapped(box, total, slope, P, W)
    total, slope = tl.sum(totals, 0), tl.sum(slopes, 0) * inv
    write_held_grad(dx, grad, value, at, mask, factor, inv, total, slope, rows)
    leads = fits & (tl.program_id(0) % P == 0)
    store_slopes(dscale, dbias, slope, total, channel, leads)


_train_clusters = Compiled(InClusters(_train, "P"))
_grad_clusters = Compiled(InClusters(_grad, "P"))


class Cut(NamedTuple):
    """Programs of a cluster, rows and channels of each, and its warps."""

    programs: int
    rows: int
    channels: int
    warps: int


def takes(x: Tensor, last: bool) -> bool:
    """Whether a cluster holds the channels that it is for."""
    if not last or x.numel() > ALL or largest(x.device) == 1:
        return False
    at_once = cdiv(x.shape[1], CHANNELS) * largest(x.device) <= multiprocessors(x.device)
    return LEAST[x.dtype.itemsize] <= _rows(x) <= (MOST_AT_ONCE if at_once else MOST)


def _rows(x: Tensor) -> int:
    """Elements of a channel."""
    return x.numel() // x.shape[1]


@functools.lru_cache(1024)
def _cut(rows: int, channels: int, device: torch.device) -> Cut:
    """As many programs as have rows to hold, more of them while there is room."""
    room = max(1, multiprocessors(device) // cdiv(channels, CHANNELS))
    more = min(power(cdiv(rows, FEWER_ROWS)), 1 << room.bit_length() - 1)
    programs = min(largest(device), max(power(cdiv(rows, ROWS)), more))
    part = power(cdiv(rows, programs))
    return Cut(programs, part, CHANNELS, max(WARPS, warps(part * CHANNELS, PER_THREAD)))


def train(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    epsilon: float,
    relu: bool,
    residual: Tensor | None,
    running: Running | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, mean, biased variance and 1 / deviation."""
    rows, channels = _rows(x), x.shape[1]
    *cut, warped = _cut(rows, channels, x.device)
    y = torch.empty_like(x)
    found = torch.empty((3, channels), dtype=torch.float32, device=x.device)
    moved = running or Running(scale, scale, 0.0, 0.0)
    _train_clusters[(cdiv(channels, CHANNELS),)](
        *(y, found, x, scale, shift, x if residual is None else residual),
        *(moved.mean, moved.variance, rows, channels),
        *(epsilon, moved.momentum, moved.unbiased),
        *(relu, residual is not None, running is not None, *cut),
        num_warps=warped,
    )
    return y, found[0], found[1], found[2]


def grad(
    results: tuple[Tensor, Tensor, Tensor],
    dy: Tensor,
    x: Tensor,
    line: tuple[Tensor, ...],
    relu: bool,
) -> None:
    """Write dx, dscale and dbias, of scale, shift, mean and 1 / deviation."""
    rows, channels = _rows(x), x.shape[1]
    *cut, warped = _cut(rows, channels, x.device)
    _grad_clusters[(cdiv(channels, CHANNELS),)](
        *(*results, dy, x, *line, rows, channels), *(relu, *cut), num_warps=warped
    )
