"""Axes and host scalars, the small numbers that kernels read as Python values; sizes of results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def axis_of(axis: int, rank: int) -> int:
    """The axis counted from the front.

    Raises:
        ValueError: if the tensor has no such axis.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is not in valid range [-{rank},{rank - 1}]")
    return axis % rank


def axes_of(axes: Iterable[int], rank: int) -> list[int]:
    """Several axes counted from the front.

    Raises:
        ValueError: if one does not exist or comes twice.
    """
    found = [axis_of(axis, rank) for axis in axes]
    if len(set(found)) != len(found):
        raise ValueError(f"axes {list(axes)} name the same axis twice in a tensor of rank {rank}")
    return found


def scalar(value: Any) -> Any:
    """The single number of a host input, whatever its rank was.

    Raises:
        ValueError: if there is not exactly one.
    """
    while isinstance(value, list):
        if len(value) != 1:
            raise ValueError(f"expected a single value, got {value}")
        value = value[0]
    return value


def kept_size(y: Tensor, x: Tensor, names: str) -> Tensor:
    """y, whose sizes are those of x unless something broadcast it that may not."""
    if y.shape != x.shape:
        raise ValueError(
            f"{names} must broadcast to the shape of X, {tuple(x.shape)}; the result would have "
            f"shape {tuple(y.shape)}"
        )
    return y
