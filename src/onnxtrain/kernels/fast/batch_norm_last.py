"""Batch normalization of images with their channels last: sums of columns, and lines of columns.

Such images are a matrix with a column for each channel. Programs that sum go down a strip through
a part of the rows; of those that write each has one tile, and the last rows, which the sums have
left in the cache, come first.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.batch_norm_steps import (
    forward_line,
    grad_line,
    load_grad,
    of_channel,
    origin_of,
    write_grad,
    write_line,
)
from onnxtrain.kernels.fast.common.approx import widened
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import (
    cdiv,
    multiprocessors,
    places,
    power,
    store_sums,
    strip,
)
from onnxtrain.kernels.fast.common.rows import LANES, REGISTERS

LINE = 128
"""Bytes of a line of the cache; no strip is cut narrower."""
SUMMED, SUMMED_AT_ONCE = {2: 128, 4: 1024}, 8192
"""Most bytes of a strip that is summed, by those of an element, and bytes of a tile."""
PROGRAMS, STAGES = 4, 3
"""Programs that sum on a multiprocessor, and how many of their tiles are under way."""
WRITTEN, WRITTEN_AT_ONCE = 1024, 4096
"""The same for a strip that is written."""
MOST_ROWS = 64
"""Rows of a tile, at most, where rows are short."""
WARPS = 4
REGISTERS_OF_SUMS = REGISTERS // (LANES * WARPS * PROGRAMS)
"""Most registers of a thread that sums, so that its programs find room."""


@Compiled
@triton.jit
def _moments(
    parts,
    x,
    rows,
    columns,
    STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    column, fits = strip(columns, C)
    origin = origin_of(x, column, fits, rows, columns, 1)[None, :]
    total = tl.zeros((R, C), tl.float32)
    square = tl.zeros((R, C), tl.float32)
    for first in tl.range(tl.program_id(1) * R, rows, tl.num_programs(1) * R, num_stages=STAGES):
        at, mask = places(first, rows, columns, column, fits, WHOLE, R)
        value = tl.where(mask, widened(tl.load(x + at, mask, 0.0)) - origin, 0.0)
        total += value
        square += value * value
    store_sums(parts, 0, total, columns, column, fits)
    store_sums(parts, 1, square, columns, column, fits)


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
    WHOLE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    column, fits = strip(columns, C)
    middle = of_channel(mean, column, fits)[None, :]
    by, add = forward_line(scale, shift, mean, inverse, column, fits)
    total = tl.zeros((R, C), tl.float32)
    product = tl.zeros((R, C), tl.float32)
    for first in tl.range(tl.program_id(1) * R, rows, tl.num_programs(1) * R, num_stages=STAGES):
        at, mask = places(first, rows, columns, column, fits, WHOLE, R)
        grad, value = load_grad(dy, x, at, mask, by[None, :], add[None, :], RELU)
        total += grad
        product += grad * (value - middle)
    store_sums(parts, 0, total, columns, column, fits)
    store_sums(parts, 1, product, columns, column, fits)


@triton.jit
def _tile(rows, columns, WHOLE: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Columns of this program's tile, which of them there are, and where the tile lies."""
    strips = tl.cdiv(columns, C)
    column = tl.program_id(0) % strips * C + tl.arange(0, C)
    fits = column < columns
    first = (tl.cdiv(rows, R) - 1 - tl.program_id(0) // strips) * R
    at, mask = places(first, rows, columns, column, fits, WHOLE, R)
    return column, fits, at, mask


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
    WHOLE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    column, fits, at, mask = _tile(rows, columns, WHOLE, R, C)
    by = of_channel(factor, column, fits)[None, :]
    add = of_channel(summand, column, fits)[None, :]
    write_line(y, x, residual, at, mask, by, add, RELU, RESIDUAL)


@Compiled
@triton.jit
def _grad_apply(
    dx,
    dy,
    x,
    factors,
    rows,
    columns,
    RELU: tl.constexpr,
    WHOLE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    column, fits, at, mask = _tile(rows, columns, WHOLE, R, C)
    a, b, c, add = grad_line(factors, columns, column, fits)
    write_grad(dx, dy, x, at, mask, a[None, :], b[None, :], c[None, :], add[None, :], RELU)


def as_matrix(x: Tensor) -> Tensor:
    """Images as a matrix with a column for each channel, without a copy where they lie so."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])


class Cut(NamedTuple):
    """Strips side by side, whether the last one ends with the row, rows and columns of a tile."""

    across: int
    whole: bool
    rows: int
    width: int

    @classmethod
    def of(cls, columns: int, itemsize: int, strip: int, at_once: int) -> Cut:
        """Strips of at most so many bytes, as wide as they can be without idle lanes."""
        widest = max(LINE // itemsize, math.gcd(columns, strip // itemsize))
        width = min(widest, power(columns))
        rows = min(MOST_ROWS, at_once // itemsize // width)
        return cls(cdiv(columns, width), columns % width == 0, rows, width)


@dataclasses.dataclass(frozen=True)
class Grid:
    """How a matrix is shared out.

    Attributes:
        rows: Elements of a channel.
        channels: Columns of the matrix.
        count: Parts of a strip that is summed.
        summed: How it is cut for sums.
        written: How it is cut for results.
        plane: Elements of a channel that lie side by side.
    """

    rows: int
    channels: int
    count: int
    summed: Cut
    written: Cut
    plane: int = 1

    @classmethod
    def of(cls, x: Tensor) -> Grid:
        """How images are shared out."""
        return _grid(x.numel() // x.shape[1], x.shape[1], x.dtype.itemsize, x.device)

    def _sum(self, kernel, *arguments, flags=()) -> None:
        """Launch a kernel over all strips and parts."""
        across, *tile = self.summed
        given = (*arguments, self.rows, self.channels, *flags, STAGES, *tile)
        kernel[(across, self.count)](*given, num_warps=WARPS, maxnreg=REGISTERS_OF_SUMS)

    def _write(self, kernel, *arguments, flags=()) -> None:
        """Launch a kernel over all tiles."""
        across, *tile = self.written
        given = (*arguments, self.rows, self.channels, *flags, *tile)
        kernel[(across * cdiv(self.rows, self.written.rows),)](*given, num_warps=WARPS)

    def moments(self, parts: Tensor, x: Tensor) -> None:
        """Σ (x - x₀) and Σ (x - x₀)² of each part."""
        self._sum(_moments, parts, as_matrix(x))

    def apply(
        self, y: Tensor, x: Tensor, line: Tensor, residual: Tensor | None, relu: bool
    ) -> None:
        """y = x·factor + summand, the line of each channel, then residual and Relu."""
        data = as_matrix(x)
        more = data if residual is None else as_matrix(residual)
        flags = [relu, residual is not None]
        self._write(_apply, as_matrix(y), data, line[0], line[1], more, flags=flags)

    def grad_sums(
        self, parts: Tensor, dy: Tensor, x: Tensor, line: tuple[Tensor, ...], relu: bool
    ) -> None:
        """Σ dy and Σ dy·(x - mean) of each part, dy being 0 where a Relu behind was closed."""
        self._sum(_grad_sums, parts, as_matrix(dy), as_matrix(x), *line, flags=[relu])

    def grad_apply(self, dx: Tensor, dy: Tensor, x: Tensor, factors: Tensor, relu: bool) -> None:
        """dx = dy·a + x·b + c."""
        given = (as_matrix(dx), as_matrix(dy), as_matrix(x), factors)
        self._write(_grad_apply, *given, flags=[relu])


@functools.lru_cache(1024)
def _grid(rows: int, columns: int, itemsize: int, device: torch.device) -> Grid:
    summed = Cut.of(columns, itemsize, SUMMED[itemsize], SUMMED_AT_ONCE)
    written = Cut.of(columns, itemsize, WRITTEN, WRITTEN_AT_ONCE)
    wanted = multiprocessors(device) * PROGRAMS // summed.across
    count = max(1, min(wanted, cdiv(rows, summed.rows)))
    return Grid(rows, columns, count, summed, written)
