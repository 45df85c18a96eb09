"""ArgMax and ArgMin: where the extremes are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onnxtrain.kernels.precision import in_order
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import NUMBERS


@kernel("ArgMax", T=NUMBERS)
def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """Position of the largest x along an axis; of equal ones the first, or the last."""
    return _position(torch.argmax, x, axis, bool(keepdims), bool(select_last_index))


@kernel("ArgMin", T=NUMBERS)
def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """Position of the smallest x along an axis; of equal ones the first, or the last."""
    return _position(torch.argmin, x, axis, bool(keepdims), bool(select_last_index))


def _position(
    function: Callable[..., Tensor], x: Tensor, axis: int, keep: bool, last: bool
) -> Tensor:
    values = in_order(x.reshape(1) if x.ndim == 0 else x)
    if x.ndim == 0:
        return function(values, axis).reshape(())
    if not values.shape[axis]:
        shape = list(x.shape)
        shape[axis] = 1
        if all(shape):
            raise ValueError(f"axis {axis} of shape {tuple(x.shape)} has no elements to choose of")
        return torch.empty(shape, dtype=torch.int64, device=x.device).sum(axis, keep)
    if not last:
        return function(values, axis, keep)
    return x.shape[axis] - 1 - function(values.flip(axis), axis, keep)
