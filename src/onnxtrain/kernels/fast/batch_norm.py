"""Batch normalization of images with their channels first or last, and its gradient.

Statistics are sums in a fixed order: many programs add up a part each, and one launch adds up the
parts and makes of them what the pass over all elements needs. Few elements take one launch.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import (
    batch_norm_clusters,
    batch_norm_few,
    batch_norm_held,
    batch_norm_last,
    batch_norm_planes,
)
from onnxtrain.kernels.fast.batch_norm_steps import (
    Running,
    before,
    inverse_deviation,
    line_of,
    move,
    of_channel,
    origin_of,
    store_statistics,
)
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv, power, strip

Four = tuple[Tensor, Tensor, Tensor, Tensor]
PARTS, ELEMENTS, WARPS = 512, 4096, 8
"""Parts and sums that a program reads at once, at most, and its warps."""


@triton.jit
def _added(parts, count, columns, column, fits, P: tl.constexpr, C: tl.constexpr):
    """Both kinds of sums over all parts."""
    first = tl.zeros((P, C), tl.float32)
    second = tl.zeros((P, C), tl.float32)
    for begin in range(0, count, P):
        part = begin + tl.arange(0, P)[:, None]
        place = parts + part * columns + column[None, :]
        there = (part < count) & fits[None, :]
        first += tl.load(place, there, 0.0)
        second += tl.load(place + count * columns, there, 0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@Compiled
@triton.jit
def _statistics(
    statistics,
    parts,
    x,
    scale,
    shift,
    old_mean,
    old_variance,
    rows,
    columns,
    plane,
    count,
    epsilon,
    momentum,
    unbiased,
    RUNNING: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """Mean, variance and 1/deviation of each channel, and y = x·factor + summand.

    Parts are Σ (x - x₀) and Σ (x - x₀)², x₀ being near the mean of the channel: large means then
    cost no precision.
    """
    column, fits = strip(columns, C)
    # all that is read is on its way before the sums are waited for
    origin = origin_of(x, column, fits, rows // plane, columns, plane)
    weight, bias = of_channel(scale, column, fits), of_channel(shift, column, fits)
    old = before(old_mean, old_variance, column, fits, RUNNING)
    total, square = _added(parts, count, columns, column, fits, P, C)
    total, square = total / rows, square / rows
    mean = origin + total
    variance = tl.maximum(square - total * total, 0.0)
    inverse = inverse_deviation(variance, epsilon)
    store_statistics(statistics, mean, variance, inverse, columns, column, fits)
    factor = weight * inverse
    tl.store(statistics + 3 * columns + column, factor, fits)
    tl.store(statistics + 4 * columns + column, bias - mean * factor, fits)
    if RUNNING:
        move(old_mean, old_variance, old, mean, variance, momentum, unbiased, column, fits)


@Compiled
@triton.jit
def _grad_factors(
    dscale,
    dbias,
    factors,
    parts,
    scale,
    shift,
    mean,
    inverse,
    rows,
    columns,
    count,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """dscale, dbias, dx = dy·a + x·b + c, of Σ dy and Σ dy·(x - mean); and y = x·a + summand."""
    column, fits = strip(columns, C)
    middle, inv = of_channel(mean, column, fits), of_channel(inverse, column, fits)
    a, summand = line_of(scale, shift, middle, inv, column, fits)
    total, slope = _added(parts, count, columns, column, fits, P, C)
    slope *= inv
    b = -a * inv * slope / rows
    c = -a * total / rows - b * middle
    tl.store(dscale + column, slope.to(dscale.dtype.element_ty), fits)
    tl.store(dbias + column, total.to(dbias.dtype.element_ty), fits)
    tl.store(factors + column, a, fits)
    tl.store(factors + columns + column, b, fits)
    tl.store(factors + 2 * columns + column, c, fits)
    tl.store(factors + 3 * columns + column, summand, fits)


def _last(x: Tensor) -> bool:
    """Whether channels lie side by side; if not, each has its planes."""
    return not x.is_contiguous() or math.prod(x.shape[2:]) == 1


def _laid_out_like(x: Tensor, other: Tensor) -> Tensor:
    """A tensor in the layout of x, copied if it has another one."""
    return other if other.stride() == x.stride() else torch.empty_like(x).copy_(other)


def _grid(x: Tensor, last: bool) -> batch_norm_last.Grid | batch_norm_planes.Grid:
    return batch_norm_last.Grid.of(x) if last else batch_norm_planes.Grid.of(x)


def train(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    epsilon: float,
    relu: bool = False,
    residual: Tensor | None = None,
    running: Running | None = None,
) -> Four:
    """y (no less than 0 with a Relu behind), mean, biased variance and 1 / deviation.

    What a shortcut brings is added before the Relu. Running statistics move in place.
    """
    if residual is not None:
        residual = _laid_out_like(x, residual)
    last = _last(x)
    if batch_norm_clusters.takes(x, last):
        return batch_norm_clusters.train(x, scale, shift, epsilon, relu, residual, running)
    if batch_norm_few.takes(x, last):
        return batch_norm_few.train(x, scale, shift, epsilon, relu, residual, running, last)
    if batch_norm_held.takes(x, last, grad=False):
        return batch_norm_held.train(x, scale, shift, epsilon, relu, residual, running)
    y, grid = torch.empty_like(x), _grid(x, last)
    parts = _parts(grid.count, x)
    grid.moments(parts, x)
    found = torch.empty((5, grid.channels), dtype=torch.float32, device=x.device)
    moved = running or Running(scale, scale, 0.0, 0.0)
    at_once = _at_once(grid.count, grid.channels)
    _statistics[(cdiv(grid.channels, at_once[1]),)](
        *(found, parts, x, scale, shift, moved.mean, moved.variance),
        *(grid.rows, grid.channels, grid.plane, grid.count),
        *(epsilon, moved.momentum, moved.unbiased, running is not None, *at_once),
        num_warps=WARPS,
    )
    grid.apply(y, x, found[3:], residual, relu)
    return y, found[0], found[1], found[2]


def grad(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    mean: Tensor,
    inverse: Tensor,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dscale and dbias; with a shift those of Relu(BatchNormalization(x)), given its dy."""
    dy, relu = _laid_out_like(x, dy), shift is not None
    line = (scale, scale if shift is None else shift, mean, inverse)
    dx, dscale, dbias = torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
    last = _last(x)
    if batch_norm_clusters.takes(x, last):
        batch_norm_clusters.grad((dx, dscale, dbias), dy, x, line, relu)
        return dx, dscale, dbias
    if batch_norm_few.takes(x, last):
        batch_norm_few.grad((dx, dscale, dbias), dy, x, line, relu, last)
        return dx, dscale, dbias
    if batch_norm_held.takes(x, last, grad=True):
        batch_norm_held.grad((dx, dscale, dbias), dy, x, line, relu)
        return dx, dscale, dbias
    grid = _grid(x, last)
    parts = _parts(grid.count, x)
    grid.grad_sums(parts, dy, x, line, relu)
    factors = torch.empty((4, grid.channels), dtype=torch.float32, device=x.device)
    at_once = _at_once(grid.count, grid.channels)
    _grad_factors[(cdiv(grid.channels, at_once[1]),)](
        *(dscale, dbias, factors, parts, *line),
        *(grid.rows, grid.channels, grid.count, *at_once),
        num_warps=WARPS,
    )
    grid.grad_apply(dx, dy, x, factors, relu)
    return dx, dscale, dbias


def _at_once(count: int, channels: int) -> tuple[int, int]:
    """Parts and channels of a program that adds parts up."""
    parts = min(power(count), PARTS)
    return parts, min(power(channels), 32, ELEMENTS // parts)


def _parts(count: int, x: Tensor) -> Tensor:
    return torch.empty((2, count, x.shape[1]), dtype=torch.float32, device=x.device)
