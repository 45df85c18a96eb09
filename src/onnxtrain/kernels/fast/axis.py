"""How a tensor is cut for kernels that go along one of its axes."""

from __future__ import annotations

import math

from torch import Tensor

from onnxtrain.kernels.fast.launch import part_of, power

LONGEST_ROW_OF_ONE = 16384
"""Elements of the longest row that is one program's."""
LEAST_WIDTH = 64
"""Bytes of the narrowest tile: memory gives no fewer at once."""
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


def tile_of(x: Tensor, size: int, inner: int, most: int) -> tuple[int, int]:
    """Rows and columns of a tile: whole columns, if they can be wide enough."""
    least = LEAST_WIDTH // x.dtype.itemsize
    if part_of(size, most // least) == power(size):
        return power(size), min(power(inner), max(most // power(size), least))
    wide = min(power(inner), 2 * least)
    return most // wide, wide
