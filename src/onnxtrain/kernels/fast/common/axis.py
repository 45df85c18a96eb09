"""How a tensor is cut for kernels that go along one of its axes."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.cluster import largest
from onnxtrain.kernels.fast.common.launch import cdiv, multiprocessors, part_of, power, warps

LONGEST_ROW_OF_ONE = 16384
"""Elements of the longest row that is one program's."""
LEAST_WIDTH = 64
"""Bytes of the narrowest tile: memory gives no fewer at once."""
TILES = 2
"""Tiles that a multiprocessor has at least, if there are as many."""
TURN = 4096
"""Bytes that each part of a row has in turn with the others."""
FEW_PER_THREAD = 8
"""Elements of a thread of a smaller tile, at most."""
MOST_SHAPES = 64
"""Axes other than the last for which kernels are compiled, each for its lengths, in a second."""
_SHAPES: set[tuple[int, int]] = set()


def extent(x: Tensor, axis: int) -> tuple[int, int]:
    """Length of an axis, and how far apart its elements lie."""
    if axis in (-1, x.ndim - 1):
        return x.shape[-1], 1
    return x.shape[axis], math.prod(x.shape[axis % x.ndim + 1 :])


def one_of_few(size: int, inner: int) -> bool:
    """Whether an axis is among the first that were seen: ever new ones are not compiled for."""
    if len(_SHAPES) < MOST_SHAPES:
        _SHAPES.add((size, inner))
    return (size, inner) in _SHAPES


def row_part(size: int, part: int) -> int:
    """Elements of a row in one program: all of a short one, else a part."""
    return power(size) if part_of(size, LONGEST_ROW_OF_ONE) == power(size) else part


class Parts(NamedTuple):
    """How many parts a row has, elements of one, and how many programs of it are a cluster."""

    number: int
    size: int
    together: int

    @property
    def at_once(self) -> bool:
        """Whether a device starts all programs of a row together."""
        return self.number == self.together

    def block(self, of: int) -> int:
        """Elements of so many bytes that a part has side by side, before it is the next one's turn.

        Programs that start together read one stretch of memory that way, which is sooner there.
        """
        return min(self.size, TURN // of) if self.at_once else self.size


@functools.cache
def parts_of(
    size: int, part: int, longest: int, several: tuple[int, int], device: torch.device
) -> Parts:
    """One part of a short row; of a long one as many as a cluster has, longer ones if need be.

    The longest rows are cut for several clusters: elements of a part, and programs of a cluster.
    """
    if row_part(size, part) >= size:
        return Parts(1, power(size), 1)
    most = largest(device)
    if most == 1:
        return Parts(cdiv(size, part), part, 1)
    length = part
    while length <= longest:
        if cdiv(size, length) <= most:
            count = power(cdiv(size, length))
            return Parts(count, length, count)
        length *= 2
    length, together = several
    return Parts(cdiv(size, length * together) * together, length, together)


def tile_of(x: Tensor, size: int, inner: int, most: int) -> tuple[int, int]:
    """Rows and columns of a tile: whole columns, if they can be wide enough.

    Of a small tensor tiles are narrower, so that every multiprocessor has some.
    """
    least = LEAST_WIDTH // x.dtype.itemsize
    if part_of(size, most // least) == power(size):
        few = power(cdiv(x.numel() // size, TILES * multiprocessors(x.device)))
        return power(size), min(power(inner), max(min(most // power(size), few), least))
    wide = min(power(inner), 2 * least)
    return most // wide, wide


def tile_warps(elements: int, whole: int, per_thread: int) -> int:
    """Warps of a tile, whose threads have as many elements as in one of the usual size or fewer."""
    return warps(elements, per_thread if elements >= whole else min(per_thread, FEW_PER_THREAD), 32)


@triton.jit
def strewn(part, PARTS: tl.constexpr, C: tl.constexpr, B: tl.constexpr):
    """Columns of one of a row's parts: B side by side, then B behind those of all other parts."""
    own = tl.arange(0, C)
    return (own // B * PARTS + part) * B + own % B


@triton.jit
def whole_rows(rows, columns, WHOLE: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Where the R rows of a program lie, and which of their elements there are.

    Only where they begin takes 64 bits. WHOLE: rows are as long as the tile, which a kernel is
    compiled for.
    """
    first, below = tl.program_id(0) * R, tl.arange(0, R)[:, None]
    column = tl.arange(0, C)[None, :]
    mask = first + below < rows
    if WHOLE:
        at = first.to(tl.int64) * C + (below * C + column)
    else:
        at = first.to(tl.int64) * columns + (below * columns + column)
        mask = mask & (column < columns)
    return at, mask
