"""Tables of positions that an exporter gave another size.

A table for a grid of patches is interpolated for images of another size. All rows of the result are
sums of fewer rows then, which its numbers tell; where the size stayed the same, nothing happened.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

_BEFORE = 5
"""How many places at most are before those of the grid, such as that of the class."""
_LARGEST = 2**24
"""Tables with more numbers are not looked at."""

_ROUNDED = 1e-5
"""What float32 leaves of a row that is a sum of others, as a part of the largest."""


def is_enlarged(numbers: np.ndarray) -> bool:
    """Whether numbers along an axis, or an axis of the grid that it stands for, are sums of fewer.

    Args:
        numbers: A table of which it is known that it was resized.
    """
    if not 1 < numbers.size <= _LARGEST:
        return False
    real = numbers.astype(np.float64)
    return any(_is_of_fewer(grid) for axis in range(real.ndim) for grid in _grids(real, axis))


def _grids(numbers: np.ndarray, axis: int) -> Iterator[np.ndarray]:
    """The table with an axis in front, and with each of two that it may stand for."""
    table = np.moveaxis(numbers, axis, 0).reshape(numbers.shape[axis], -1)
    yield table
    for before in range(min(_BEFORE + 1, len(table))):
        rows = table[before:]
        for height in range(2, math.isqrt(len(rows)) + 1):
            if len(rows) % height:
                continue
            for sizes in {(height, len(rows) // height), (len(rows) // height, height)}:
                grid = rows.reshape(*sizes, -1)
                yield grid.reshape(len(grid), -1)
                yield grid.swapaxes(0, 1).reshape(sizes[1], -1)


def _is_of_fewer(table: np.ndarray) -> bool:
    """Whether rows are sums of fewer ones; there have to be more numbers in each than rows."""
    rows, columns = table.shape
    if not 2 < rows <= columns or not table.any(1).all() or not np.isfinite(table).all():
        return False
    squares = np.linalg.eigvalsh(table @ table.T)
    return bool(squares[0] < _ROUNDED**2 * squares[-1])
