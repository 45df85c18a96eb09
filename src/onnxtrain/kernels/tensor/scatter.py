"""Values written, or reduced, into a copy of a tensor at indexed places."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxtrain.kernels.precision import acc, from_order, in_order
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axis_of
from onnxtrain.kernels.tensor.indices import flat_rows, wrapped
from onnxtrain.kernels.tensor.movable import movable
from onnxtrain.types import INTS

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@kernel("Scatter", since=9, inplace=["data"], Tind=INTS)
@kernel("ScatterElements", since=11, until=15, inplace=["data"], Tind=INTS)
def scatter_elements_11(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, out: Tensor | None = None
) -> Tensor:
    """data, with out[m with m[axis] replaced by indices[m]] = updates[m]."""
    axis = axis_of(axis, data.ndim)
    out = data.clone() if out is None else out.copy_(data)
    index = wrapped(indices, data.shape[axis]).long()
    movable(out).scatter_(axis, index, movable(updates))
    return out


@kernel("ScatterElements", since=16, inplace=["data"], needs=["deterministic"], Tind=INTS)
def scatter_elements(
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    axis: int = 0,
    reduction: str = "none",
    deterministic: bool,
    out: Tensor | None = None,
) -> Tensor:
    """data, with updates[m] written to, or reduced into, m with m[axis] replaced by indices[m]."""
    if reduction == "none":
        return scatter_elements_11(data, indices, updates, axis=axis, out=out)
    axis = axis_of(axis, data.ndim)
    index = wrapped(indices, data.shape[axis]).long()
    return _reduced(data, axis, index, updates, reduction, deterministic, out)


@kernel("ScatterND", since=11, until=15, inplace=["data"])
def scatter_nd_11(
    data: Tensor, indices: Tensor, updates: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """data, with out[indices[n, 0], indices[n, 1], ..., :] = updates[n, :]."""
    return scatter_nd(data, indices, updates, deterministic=False, out=out)


@kernel("ScatterND", since=16, inplace=["data"], needs=["deterministic"])
def scatter_nd(
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    reduction: str = "none",
    deterministic: bool,
    out: Tensor | None = None,
) -> Tensor:
    """data, with updates[n, :] written to, or reduced into, the slice at the tuple indices[n]."""
    depth = indices.shape[-1]
    count = math.prod(data.shape[:depth])
    rows = flat_rows(indices, data.shape[:depth])
    table = data.reshape(count, -1) if data.numel() else data.reshape(count, 0)
    values = updates.reshape(rows.numel(), table.shape[1])
    index = rows[:, None].expand_as(values)
    if reduction != "none":
        result = _reduced(table, 0, index, values, reduction, deterministic)
    else:
        result = table.clone()
        movable(result).scatter_(0, index, movable(values))
    result = result.reshape(data.shape)
    return result if out is None else out.copy_(result)


def _reduced(
    data: Tensor,
    axis: int,
    index: Tensor,
    updates: Tensor,
    reduction: str,
    deterministic: bool,
    out: Tensor | None = None,
) -> Tensor:
    """scatter_reduce in every type: 16-bit floats in float32, unsigned ones in a signed type."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction '{reduction}' is not one of none, {', '.join(_REDUCTIONS)}")
    raise NotImplementedError


def tensor_scatter() -> None:
    """x"""
