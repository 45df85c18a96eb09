"""Batch normalization of images with their channels last: sums of columns, and lines of columns.

Such images are a matrix with a column for each channel. Every program goes down a strip through a
part of the rows; the second pass goes up, where the first one has left the last rows in the cache.
"""

from __future__ import annotations

import dataclasses

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
def _last(rows, R: tl.constexpr):
    """Where the last rows of this program begin, and how far those before them are."""
    step = tl.num_programs(1) * R
    begin = tl.program_id(1) * R
    return begin + (rows - 1 - begin) // step * step, step


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
    last, step = _last(rows, R)
    for back in tl.range(0, last + 1, step, num_stages=STAGES):
        at, mask = places(last - back, rows, columns, column, fits, R)
        value = tl.load(x + at, mask, 0.0)
        result = widened(value) * by + add
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
    last, step = _last(rows, R)
    for back in tl.range(0, last + 1, step, num_stages=STAGES):
        at, mask = places(last - back, rows, columns, column, fits, R)
        value = widened(tl.load(x + at, mask, 0.0))
        grad = widened(tl.load(dy + at, mask, 0.0))
        if RELU:
            grad = tl.where(value * by + add > 0, grad, 0.0)
        tl.store(dx + at, (grad * a + value * b + c).to(dx.dtype.element_ty), mask)


def as_matrix(x: Tensor) -> Tensor:
    """Images as a matrix with a column for each channel, without a copy where they lie so."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])


@dataclasses.dataclass(frozen=True)
class Grid:
    """Strips and parts of a matrix."""

    rows: int
    channels: int
    width: int
    across: int
    count: int
    plan: Launch
    apart: int = 1
    """How far the first elements of channels are from each other."""

    @classmethod
    def of(cls, x: Tensor) -> Grid:
        """How images are shared out."""
        columns = x.shape[1]
        rows = x.numel() // columns
        plan = LAUNCHES[x.dtype.itemsize]
        width = min(plan.strip // x.dtype.itemsize, power(columns))
        across = cdiv(columns, width)
        wanted = multiprocessors(x.device) * plan.programs
        count = max(1, min(wanted // across, cdiv(rows, plan.rows)))
        return cls(rows, columns, width, across, count, plan)

    def _run(self, kernel, *arguments, flags=()) -> None:
        """Launch a kernel over all strips and parts."""
        kernel[(self.across, self.count)](
            *arguments,
            self.rows,
            self.channels,
            *flags,
            self.plan.stages,
            self.plan.rows,
            self.width,
            num_warps=self.plan.warps,
        )

    def moments(self, parts: Tensor, x: Tensor) -> None:
        """Σ (x - x₀) and Σ (x - x₀)² of each part."""
        self._run(_moments, parts, as_matrix(x))

    def apply(
        self, y: Tensor, x: Tensor, line: Tensor, residual: Tensor | None, relu: bool
    ) -> None:
        """y = x·factor + summand, the line of each channel, then residual and Relu."""
        data = as_matrix(x)
        more = data if residual is None else as_matrix(residual)
        flags = [relu, residual is not None]
        self._run(_apply, as_matrix(y), data, line[0], line[1], more, flags=flags)

    def grad_sums(
        self, parts: Tensor, dy: Tensor, x: Tensor, line: tuple[Tensor, ...], relu: bool
    ) -> None:
        """Σ dy and Σ dy·(x - mean) of each part, dy being 0 where a Relu behind was closed."""
        self._run(_grad_sums, parts, as_matrix(dy), as_matrix(x), *line, flags=[relu])

    def grad_apply(
        self,
        dx: Tensor,
        dy: Tensor,
        x: Tensor,
        factors: Tensor,
        line: tuple[Tensor, ...],
        relu: bool,
    ) -> None:
        """dx = dy·a + x·b + c."""
        given = (as_matrix(dx), as_matrix(dy), as_matrix(x))
        self._run(_grad_apply, *given, factors, *line, flags=[relu])
