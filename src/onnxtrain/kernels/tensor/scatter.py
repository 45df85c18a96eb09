"""Values written, or reduced, into a copy of a tensor at indexed places."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxtrain.kernels.ordered import Combine, combine_at
from onnxtrain.kernels.precision import acc, as_signed, from_order, in_order, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axis_of
from onnxtrain.kernels.tensor.indices import add_at, flat_rows, wrapped
from onnxtrain.kernels.tensor.movable import movable
from onnxtrain.types import INTS

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
_COMBINE: dict[str, Combine] = {"mul": torch.mul, "max": torch.maximum, "min": torch.minimum}
_OF_TRUTH = {"add": "max", "mul": "min"}
"""Reductions of truth values, by that of the numbers 0 and 1 which gives the same."""


@kernel("Scatter", since=9, inplace=["data"], Tind=INTS)
@kernel("ScatterElements", since=11, until=15, inplace=["data"], Tind=INTS)
def scatter_elements_11(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, out: Tensor | None = None
) -> Tensor:
    """data, with out[m with m[axis] replaced by indices[m]] = updates[m]."""
    axis = axis_of(axis, data.ndim)
    index = wrapped(indices, data.shape[axis]).long()
    own = _owned(data, out)
    movable(own).scatter_(axis, index, movable(updates))
    return own


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
    own = _owned(data, out)
    _reduce_into(own, axis, index, updates, reduction, deterministic)
    return own


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
    rows = flat_rows(indices, data.shape[:depth])
    inner = math.prod(data.shape[depth:])
    own = _owned(data, out)
    table = own.view(math.prod(data.shape[:depth]), inner)
    values = updates.reshape(rows.numel(), inner)
    index = rows[:, None].expand_as(values)
    if reduction == "none":
        movable(table).scatter_(0, index, movable(values))
    else:
        _reduce_into(table, 0, index, values, reduction, deterministic)
    return own


@kernel("TensorScatter", since=24, inplace=["past_cache"])
def tensor_scatter(
    past_cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
    out: Tensor | None = None,
) -> Tensor:
    """The cache with batch b's update written from position write_indices[b] on along the axis."""
    if mode not in ("linear", "circular"):
        raise ValueError(f"mode '{mode}' is not one of linear, circular")
    axis = axis_of(axis, past_cache.ndim)
    size, length = past_cache.shape[axis], update.shape[axis]
    own = _owned(past_cache, out)
    if write_indices is None:
        own.narrow(axis, 0, length).copy_(update)
        return own
    index = write_indices[:, None] + torch.arange(length, device=own.device)
    index = index.remainder(size) if mode == "circular" else wrapped(index, size)
    index = index.reshape([update.shape[i] if i in (0, axis) else 1 for i in range(update.ndim)])
    movable(own).scatter_(axis, index.expand_as(update), movable(update))
    return own


def _owned(data: Tensor, out: Tensor | None) -> Tensor:
    """A contiguous copy of the data, which the caller may overwrite: in ``out`` if it serves."""
    if out is None or not out.is_contiguous():
        return data.clone(memory_format=torch.contiguous_format)
    return out.copy_(data)


def _reduce_into(
    own: Tensor, axis: int, index: Tensor, updates: Tensor, reduction: str, ordered: bool
) -> None:
    """own = f(own, updates) in place, in a type that torch reduces without loss."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction '{reduction}' is not one of none, {', '.join(_REDUCTIONS)}")
    if own.dtype is torch.bool:
        how = _OF_TRUTH.get(reduction, reduction)
        _reduce_into(own.view(torch.uint8), axis, index, updates.view(torch.uint8), how, ordered)
    elif acc(own.dtype) is not own.dtype:
        wide = widen(own)
        _reduce_into(wide, axis, index, widen(updates), reduction, ordered)
        own.copy_(wide)
    elif reduction == "add":
        add_at(as_signed(own), axis, index, as_signed(updates), ordered=ordered)
    elif reduction == "mul" or as_signed(own).dtype is own.dtype:
        plain, values = as_signed(own), as_signed(updates)
        if ordered and own.device.type != "cpu":
            combine_at(plain, axis, index, values, _COMBINE[reduction])
        else:
            plain.scatter_reduce_(axis, index, values, _REDUCTIONS[reduction])
    else:
        signed = in_order(own)
        _reduce_into(signed, axis, index, in_order(updates), reduction, ordered)
        own.copy_(from_order(signed, own.dtype))
