"""Running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onnxtrain.kernels.ordered import Combine, scanned
from onnxtrain.kernels.precision import as_int64, from_int64, store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.types import NUMBERS, DataType

_TYPES = NUMBERS - {DataType.INT8, DataType.INT16, DataType.UINT8, DataType.UINT16}
_Axis = int | list[int]
_Scan = Callable[[Tensor, int], Tensor]


@kernel("CumSum", since=11, T=_TYPES, host=["axis"], needs=["deterministic"])
def cum_sum(
    x: Tensor, axis: _Axis, *, exclusive: int = 0, reverse: int = 0, deterministic: bool = False
) -> Tensor:
    """y_j = Σ_{i ≤ j} x_i (i < j if exclusive; from the end if reverse)."""
    function = _running(torch.cumsum, torch.add, x, deterministic)
    return _scan(x, axis, function, 0, bool(exclusive), bool(reverse))


@kernel("CumProd", since=26, T=_TYPES, host=["axis"], needs=["deterministic"])
def cum_prod(
    x: Tensor, axis: _Axis, *, exclusive: int = 0, reverse: int = 0, deterministic: bool = False
) -> Tensor:
    """y_j = Π_{i ≤ j} x_i (i < j if exclusive; from the end if reverse)."""
    function = _running(torch.cumprod, torch.mul, x, deterministic)
    return _scan(x, axis, function, 1, bool(exclusive), bool(reverse))


def _running(own: _Scan, combine: Combine, x: Tensor, deterministic: bool) -> _Scan:
    """torch's own scan, unless it combines in any order and that matters."""
    if not (deterministic and x.is_cuda and x.is_floating_point()):
        return own
    return lambda values, dim: scanned(values, dim, combine)


def _scan(
    x: Tensor,
    axis: _Axis,
    function: _Scan,
    unit: int,
    exclusive: bool,
    reverse: bool,
) -> Tensor:
    dim = single(axis)
    line = x.reshape(1) if x.ndim == 0 else x
    values = widen(line) if x.is_floating_point() else as_int64(line)
    if reverse:
        values = values.flip(dim)
    if exclusive:
        values = values.roll(1, dim)
        values.narrow(dim, 0, min(1, values.shape[dim])).fill_(unit)
    result = function(values, dim)
    if reverse:
        result = result.flip(dim)
    result = result.reshape(x.shape)
    return store(result, x) if x.is_floating_point() else from_int64(result, x.dtype)
