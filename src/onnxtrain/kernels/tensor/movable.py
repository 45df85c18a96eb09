"""Element types that torch stores but does not index, seen as types that it does."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.precision import as_signed


def movable(x: Tensor) -> Tensor:
    """The same memory in a type that every torch kernel moves; ``moved`` goes back."""
    if x.dtype.is_floating_point and x.dtype.itemsize == 1:
        return x.view(torch.uint8)
    return as_signed(x)


def moved(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same memory in the type that it had; a view of another type would have no gradient."""
    return x if x.dtype == dtype else x.view(dtype)


def picked(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """The slices at an index along an axis, of any type."""
    return moved(movable(x).index_select(axis, index), x.dtype)
