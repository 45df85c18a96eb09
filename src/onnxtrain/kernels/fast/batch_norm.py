"""Batch normalization of images with their channels last, and its gradient.

Such images are a matrix with a column for each channel. Statistics are sums of columns in a fixed
order: every program goes down a strip through a part of the rows, and one launch adds up the parts
and makes of them what the pass over all elements needs.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.approx import widened
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv, multiprocessors, places, power, store_sums, strip


@dataclasses.dataclass(frozen=True)
class Launch:
    """Bytes of a strip, rows at once, warps, programs on a multiprocessor, stages."""

    strip: int
    rows: int
    warps: int
    programs: int
    stages: int


LAUNCHES = {2: Launch(128, 64, 4, 4, 3), 4: Launch(128, 64, 4, 4, 3)}
"""By the bytes of an element."""


@Compiled
@triton.jit
def _moments(parts, x, rows, columns, STAGES: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Σ (x - x₀) and Σ (x - x₀)², x₀ being the first row: large means then cost no precision."""
    column, fits = strip(columns, C)
    origin = tl.load(x + column, fits, 0.0).to(tl.float32)[None, :]
    total = tl.zeros((R, C), tl.float32)
    square = tl.zeros((R, C), tl.float32)
    for first in tl.range(tl.program_id(1) * R, rows, tl.num_programs(1) * R, num_stages=STAGES):
        at, mask = places(first, rows, columns, column, fits, R)
        value = tl.where(mask, widened(tl.load(x + at, mask, 0.0)) - origin, 0.0)
        total += value
        square += value * value
    store_sums(parts, 0, total, columns, column, fits)
    store_sums(parts, 1, square, columns, column, fits)


@triton.jit
def _added(parts, count, columns, column, fits, P: tl.constexpr, C: tl.constexpr):
    total = tl.zeros((P, C), tl.float32)
    for first in range(0, count, P):
        part = first + tl.arange(0, P)[:, None]
        total += tl.load(
            parts + part * columns + column[None, :], (part < count) & fits[None, :], 0.0
        )
    return tl.sum(total, 0)


@Compiled
@triton.jit
def _statistics(
    statistics,
    parts,
    x,
    scale,
    shift,
    rows,
    columns,
    count,
    epsilon,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """Mean, variance and 1/deviation of each column, and y = x·factor + summand."""
    column, fits = strip(columns, C)
    total = _added(parts, count, columns, column, fits, P, C) / rows
    square = _added(parts + count * columns, count, columns, column, fits, P, C) / rows
    mean = tl.load(x + column, fits, 0.0).to(tl.float32) + total
    variance = tl.maximum(square - total * total, 0.0)
    inverse = tl.div_rn(tl.full((C,), 1.0, tl.float32), tl.sqrt_rn(variance + epsilon))
    factor = tl.load(scale + column, fits, 0.0).to(tl.float32) * inverse
    summand = tl.load(shift + column, fits, 0.0).to(tl.float32) - mean * factor
    tl.store(statistics + column, mean, fits)
    tl.store(statistics + columns + column, variance, fits)
    tl.store(statistics + 2 * columns + column, inverse, fits)
    tl.store(statistics + 3 * columns + column, factor, fits)
    tl.store(statistics + 4 * columns + column, summand, fits)


@Compiled
@triton.jit
def _apply(
    y,
    x,
    factor,
    summand,
    residual,
    rows,
    columns,
    RELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    STAGES: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    column, fits = strip(columns, C)
    by = tl.load(factor + column, fits, 0.0)[None, :]
    add = tl.load(summand + column, fits, 0.0)[None, :]
    for first in tl.range(tl.program_id(1) * R, rows, tl.num_programs(1) * R, num_stages=STAGES):
        at, mask = places(first, rows, columns, column, fits, R)
        value = tl.load(x + at, mask, 0.0)
        result = value.to(tl.float32) * by + add
        if RESIDUAL:
            result += widened(tl.load(residual + at, mask, 0.0))
        if RELU:
            result = tl.maximum(result, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(y + at, result.to(value.dtype), mask)


@triton.jit
def _forward_line(scale, shift, mean, inverse, column, fits):
    """Factor and summand of the normalization, as the forward pass had them."""
    factor = tl.load(scale + column, fits, 0.0).to(tl.float32)
    factor *= tl.load(inverse + column, fits, 0.0).to(tl.float32)
    middle = tl.load(mean + column, fits, 0.0).to(tl.float32)
    summand = tl.load(shift + column, fits, 0.0).to(tl.float32) - middle * factor
    return factor[None, :], summand[None, :]


@Compiled
@triton.jit
def _grad_sums(
    parts,
    dy,
    x,
    scale,
    shift,
    mean,
    inverse,
    rows,
    columns,
    RELU: tl.constexpr,
    STAGES: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Σ dy and Σ dy·(x - mean), dy being 0 where a Relu behind was closed."""
    column, fits = strip(columns, C)
    middle = tl.load(mean + column, fits, 0.0).to(tl.float32)[None, :]
    if RELU:
        by, add = _forward_line(scale, shift, mean, inverse, column, fits)
    total = tl.zeros((R, C), tl.float32)
    product = tl.zeros((R, C), tl.float32)
    for first in tl.range(tl.program_id(1) * R, rows, tl.num_programs(1) * R, num_stages=STAGES):
        at, mask = places(first, rows, columns, column, fits, R)
        grad = widened(tl.load(dy + at, mask, 0.0))
        value = widened(tl.load(x + at, mask, 0.0))
        if RELU:
            grad = tl.where(value * by + add > 0, grad, 0.0)
        total += grad
        product += grad * (value - middle)
    store_sums(parts, 0, total, columns, column, fits)
    store_sums(parts, 1, product, columns, column, fits)


@Compiled
@triton.jit
def _grad_factors(
    dscale,
    dbias,
    factors,
    parts,
    scale,
    mean,
    inverse,
    rows,
    columns,
    count,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """dscale and dbias, and dx = dy·a + x·b + c."""
    column, fits = strip(columns, C)
    total = _added(parts, count, columns, column, fits, P, C)
    inv = tl.load(inverse + column, fits, 0.0).to(tl.float32)
    slope = _added(parts + count * columns, count, columns, column, fits, P, C) * inv
    a = tl.load(scale + column, fits, 0.0).to(tl.float32) * inv
    b = -a * inv * slope / rows
    c = -a * total / rows - b * tl.load(mean + column, fits, 0.0).to(tl.float32)
    tl.store(dscale + column, slope.to(dscale.dtype.element_ty), fits)
    tl.store(dbias + column, total.to(dbias.dtype.element_ty), fits)
    tl.store(factors + column, a, fits)
    tl.store(factors + columns + column, b, fits)
    tl.store(factors + 2 * columns + column, c, fits)


@Compiled
@triton.jit
def _grad_apply(
    dx,
    dy,
    x,
    factors,
    scale,
    shift,
    mean,
    inverse,
    rows,
    columns,
    RELU: tl.constexpr,
    STAGES: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    column, fits = strip(columns, C)
    a = tl.load(factors + column, fits, 0.0)[None, :]
    b = tl.load(factors + columns + column, fits, 0.0)[None, :]
    c = tl.load(factors + 2 * columns + column, fits, 0.0)[None, :]
    if RELU:
        by, add = _forward_line(scale, shift, mean, inverse, column, fits)
    for first in tl.range(tl.program_id(1) * R, rows, tl.num_programs(1) * R, num_stages=STAGES):
        at, mask = places(first, rows, columns, column, fits, R)
        value = widened(tl.load(x + at, mask, 0.0))
        grad = widened(tl.load(dy + at, mask, 0.0))
        if RELU:
            grad = tl.where(value * by + add > 0, grad, 0.0)
        tl.store(dx + at, (grad * a + value * b + c).to(dx.dtype.element_ty), mask)


def as_matrix(x: Tensor) -> Tensor:
    """Images as a matrix with a column for each channel, without a copy where they lie so."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])


@dataclasses.dataclass(frozen=True)
class _Grid:
    """Strips and parts of a matrix."""

    rows: int
    columns: int
    width: int
    across: int
    count: int
    plan: Launch

    @classmethod
    def of(cls, x: Tensor) -> _Grid:
        rows, columns = x.shape
        plan = LAUNCHES[x.dtype.itemsize]
        width = min(plan.strip // x.dtype.itemsize, power(columns))
        across = cdiv(columns, width)
        wanted = multiprocessors(x.device) * plan.programs
        count = max(1, min(wanted // across, cdiv(rows, plan.rows)))
        return cls(rows, columns, width, across, count, plan)

    def run(self, kernel, *arguments, flags=()) -> None:
        """Launch a kernel over all strips and parts."""
        kernel[(self.across, self.count)](
            *arguments,
            self.rows,
            self.columns,
            *flags,
            self.plan.stages,
            self.plan.rows,
            self.width,
            num_warps=self.plan.warps,
        )

    def parts(self, device: torch.device) -> Tensor:
        return torch.empty((2, self.count, self.columns), dtype=torch.float32, device=device)


def train(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    epsilon: float,
    relu: bool = False,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y (no less than 0 with a Relu behind), mean, biased variance and 1 / deviation.

    What a shortcut brings, laid out like x, is added before the Relu.
    """
    data, y = as_matrix(x), torch.empty_like(x)
    grid = _Grid.of(data)
    parts = grid.parts(x.device)
    grid.run(_moments, parts, data)
    found = torch.empty((5, grid.columns), dtype=torch.float32, device=x.device)
    _statistics[(cdiv(grid.columns, 32),)](
        *(found, parts, data, scale, shift, grid.rows, grid.columns, grid.count, epsilon, 128, 32),
        num_warps=8,
    )
    more = data if residual is None else as_matrix(residual)
    flags = [relu, residual is not None]
    grid.run(_apply, as_matrix(y), data, found[3], found[4], more, flags=flags)
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
    data, given, dx = as_matrix(x), as_matrix(dy), torch.empty_like(x)
    grid = _Grid.of(data)
    parts = grid.parts(x.device)
    relu = shift is not None
    line = (scale, scale if shift is None else shift, mean, inverse)
    grid.run(_grad_sums, parts, given, data, *line, flags=[relu])
    dscale, dbias = torch.empty_like(scale), torch.empty_like(scale)
    factors = torch.empty((3, grid.columns), dtype=torch.float32, device=x.device)
    _grad_factors[(cdiv(grid.columns, 32),)](
        *(dscale, dbias, factors, parts, scale, mean, inverse),
        *(grid.rows, grid.columns, grid.count, 128, 32),
        num_warps=8,
    )
    grid.run(_grad_apply, as_matrix(dx), given, data, factors, *line, flags=[relu])
    return dx, dscale, dbias
