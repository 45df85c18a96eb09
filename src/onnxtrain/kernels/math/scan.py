"""Running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onnxtrain.kernels.precision import as_int64, from_int64, store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.types import NUMBERS, DataType

_TYPES = NUMBERS - {DataType.INT8, DataType.INT16, DataType.UINT8, DataType.UINT16}
_Axis = int | list[int]


@kernel("CumSum", since=11, T=_TYPES, host=["axis"])
def cum_sum(x: Tensor, axis: _Axis, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """y_j = Σ_{i ≤ j} x_i (i < j if exclusive; from the end if reverse)."""
    return _scan(x, axis, torch.cumsum, 0, bool(exclusive), bool(reverse))


@kernel("CumProd", since=26, T=_TYPES, host=["axis"])
def cum_prod(x: Tensor, axis: _Axis, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """y_j = Π_{i ≤ j} x_i (i < j if exclusive; from the end if reverse)."""
    return _scan(x, axis, torch.cumprod, 1, bool(exclusive), bool(reverse))


def _scan(
    x: Tensor,
    axis: _Axis,
    function: Callable[..., Tensor],
    unit: int,
    exclusive: bool,
    reverse: bool,
) -> Tensor:
    dim = single(axis)
    values = widen(x) if x.is_floating_point() else as_int64(x)
    if reverse:
        values = values.flip(dim)
    if exclusive:
        values = values.roll(1, dim)
        values.narrow(dim, 0, min(1, values.shape[dim])).fill_(unit)
    result = function(values, dim)
    if reverse:
        result = result.flip(dim)
    return store(result, x) if x.is_floating_point() else from_int64(result, x.dtype)
