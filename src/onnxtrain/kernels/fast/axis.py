"""How a tensor is cut for kernels that go along one of its axes."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from onnxtrain.kernels.fast.cluster import largest
from onnxtrain.kernels.fast.launch import cdiv, part_of, power

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


class Parts(NamedTuple):
    """How many parts a row has, elements of one, and whether its programs are a cluster."""

    number: int
    size: int
    clustered: bool


@functools.cache
def parts_of(size: int, part: int, longest: int, device: torch.device) -> Parts:
    """One part of a short row; of a long one as many as a cluster has, longer ones if need be."""
    if row_part(size, part) >= size:
        return Parts(1, power(size), False)
    length = part
    while length <= longest:
        if cdiv(size, length) <= largest(device):
            return Parts(power(cdiv(size, length)), length, True)
        length *= 2
    return Parts(cdiv(size, part), part, False)


def tile_of(x: Tensor, size: int, inner: int, most: int) -> tuple[int, int]:
    """Rows and columns of a tile: whole columns, if they can be wide enough."""
    least = LEAST_WIDTH // x.dtype.itemsize
    if part_of(size, most // least) == power(size):
        return power(size), min(power(inner), max(most // power(size), least))
    wide = min(power(inner), 2 * least)
    return most // wide, wide
