"""Matrices side by side: concatenation along any axis but the first.

torch's programs go through one matrix after the other, and what they write at once lies far apart.
Here neighbours write neighbouring pieces of a row, whichever matrix these are of.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.chunks import KINDS, pointer_to, table_of
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.lasting import keep
from onnxtrain.kernels.rehearsal import rehearsing

MOST = 8
"""Matrices whose addresses a launch gets one by one; more of them, of one width, in a table."""
PIECE = 2048
"""Bytes of a row that a program moves, with one warp: longer and shorter ones take longer."""
FEWEST = 1 << 25
"""Bytes of a result below which torch is called."""


@triton.jit
def _source(column, matrices, ends):
    """The matrix that a column is of, where that begins, and where it ends."""
    matrix, start, end = matrices[0], 0, ends[0]
    for number in tl.static_range(len(ends) - 1):
        behind = column >= ends[number]
        matrix = tl.where(behind, matrices[number + 1], matrix)
        start = tl.where(behind, ends[number], start)
        end = tl.where(behind, ends[number + 1], end)
    return matrix, start, end


@Compiled
@triton.jit
def _beside(
    out,
    first,
    second,
    third,
    fourth,
    fifth,
    sixth,
    seventh,
    eighth,
    columns,
    end_1,
    end_2,
    end_3,
    end_4,
    end_5,
    end_6,
    end_7,
    end_8,
    PIECES: tl.constexpr,
    N: tl.constexpr,
):
    """A piece of a row, of so many."""
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    column = tl.program_id(0) % PIECES * N
    matrices = (first, second, third, fourth, fifth, sixth, seventh, eighth)
    ends = (end_1, end_2, end_3, end_4, end_5, end_6, end_7, end_8)
    matrix, start, end = _source(column, matrices, ends)
    at = tl.arange(0, N)
    source = tl.multiple_of(matrix + row * (end - start) + (column - start), 16)
    tl.store(out + row * columns + column + at, tl.load(source + at))


@Compiled
@triton.jit
def _many_beside(
    out, table, columns, width, KIND: tl.constexpr, PIECES: tl.constexpr, N: tl.constexpr
):
    """The same of matrices of one width."""
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    column = tl.program_id(0) % PIECES * N
    number = column // width
    source = pointer_to(table, number, row * width + (column - number * width), KIND)
    at = tl.arange(0, N)
    tl.store(out + row * columns + column + at, tl.load(source + at))


def concat(inputs: Sequence[Tensor], axis: int) -> Tensor | None:
    """The inputs one after the other along an axis; None if torch should do it."""
    first = inputs[0]
    alike = {(x.dtype, x.device) for x in inputs} == {(first.dtype, first.device)}
    if not alike or not _takes(tuple([x.shape for x in inputs]), axis, first.dtype.itemsize):
        return None
    # tensors of a rehearsal are nowhere
    places = tuple([0 if rehearsing() else x.data_ptr() for x in inputs])
    if functools.reduce(operator.or_, places) % 16:
        return None
    shape = [*first.shape]
    shape[axis] = sum([x.shape[axis] for x in inputs])
    out, rows = first.new_empty(shape), math.prod(shape[:axis])
    ends = [*accumulate([x.numel() // rows for x in inputs])]
    length = PIECE // first.dtype.itemsize
    grid, sizes = (rows * ends[-1] // length,), (ends[-1] // length, length)
    if len(inputs) <= MOST:
        missing = MOST - len(inputs)
        given = *inputs, *[first] * missing
        _beside[grid](out, *given, ends[-1], *ends, *ends[-1:] * missing, *sizes, num_warps=1)
        return out
    table = _table(places, first.device)
    if table is None:
        return None
    _many_beside[grid](out, table, ends[-1], ends[0], KINDS[first.dtype], *sizes, num_warps=1)
    return out


@functools.lru_cache(maxsize=1024)
def _takes(shapes: tuple[torch.Size, ...], axis: int, itemsize: int) -> bool:
    """Whether these are matrices of whole pieces, and large enough; many must have one width."""
    rows = math.prod(shapes[0][:axis])
    widths = [math.prod(shape[axis:]) * itemsize for shape in shapes]
    alike = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(alike) > 1 or any(width % PIECE for width in widths):
        return False
    if rows == 1 or (len(shapes) > MOST and len({*widths}) > 1):
        return False
    size = rows * sum(widths)
    # programs, and elements of a row, are counted in 32 bits
    return size >= FEWEST and max(size // PIECE, sum(widths) // itemsize) < 1 << 31


def _table(places: tuple[int, ...], device: torch.device) -> Tensor | None:
    """Where the matrices begin, on their device; None if it cannot be sent there."""
    if rehearsing():
        return torch.empty(len(places), dtype=torch.int64, device=device)
    table = table_of(places, device)
    if table is not None:
        keep(table)
    return table
