"""Elements chosen by a condition, by rank or by being new."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.precision import from_order, in_order
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axis_of, scalar
from onnxtrain.kernels.tensor.chosen import chosen
from onnxtrain.kernels.tensor.movable import movable, moved, picked
from onnxtrain.types import BOOL, FIXED, FLOAT8, NUMBERS


@kernel("Where", since=9, inplace=["x", "y"])
def where(condition: Tensor, x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x where the condition holds, else y; all three broadcast."""
    if condition.is_cpu and (found := chosen(condition, x, y, out)) is not None:
        return found
    into = None if out is None else movable(out)
    return moved(torch.where(condition, movable(x), movable(y), out=into), x.dtype)


@kernel("TopK", until=9, outputs=2, T=NUMBERS)
def top_k_1(x: Tensor, *, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k largest values along an axis, and where they stood."""
    return top_k(x, k, axis=axis)


@kernel("TopK", since=10, outputs=2, host=["k"], T=NUMBERS)
def top_k(
    x: Tensor, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) values along an axis, and where they stood.

    Of equal values the one with the lower index comes first.
    """
    axis = axis_of(axis, x.ndim)
    count = int(scalar(k))
    if not 0 <= count <= x.shape[axis]:
        raise ValueError(f"k={count} is not in [0,{x.shape[axis]}], the size of axis {axis}")
    values, indices = torch.sort(in_order(x), dim=axis, descending=bool(largest), stable=True)
    first = values.narrow(axis, 0, count).contiguous()
    return from_order(first, x.dtype), indices.narrow(axis, 0, count).contiguous()


@kernel("NonZero", since=9, T=FIXED | FLOAT8)
def non_zero(x: Tensor) -> Tensor:
    """Indices of the elements that are not zero, one column per element."""
    return (x != 0).nonzero().t().contiguous()


@kernel("Compress", since=9, T1=BOOL)
def compress(input: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """The slices along an axis (or, without one, the elements) whose condition holds.

    What lies beyond the end of the condition is left out.
    """
    if axis is None:
        input, axis = input.reshape(-1), 0
    axis = axis_of(axis, input.ndim)
    return picked(input, axis, condition[: input.shape[axis]].nonzero().squeeze(1))


@kernel("Unique", since=11, outputs=4, T=FIXED)
def unique(
    x: Tensor, *, axis: int | None = None, sorted: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distinct elements or slices, their first places, every element's number among them, counts.

    They ascend if ``sorted``, otherwise they stand in the order of their first places.
    """
    dim = 0 if axis is None else axis_of(axis, x.ndim)
    if axis is not None and not x.numel():
        return _unique_of_nothing(x, dim)
    keys = in_order(x.reshape(-1) if axis is None else x)
    found, inverse, counts = torch.unique(
        keys, return_inverse=True, return_counts=True, dim=None if axis is None else dim
    )
    places = torch.arange(keys.shape[dim], device=x.device)
    first = torch.full_like(counts, keys.shape[dim]).scatter_reduce_(0, inverse, places, "amin")
    if not sorted:
        first, order = first.sort()
        found, counts = found.index_select(dim, order), counts[order]
        inverse = order.argsort()[inverse]
    return from_order(found, x.dtype), first, inverse, counts


def _unique_of_nothing(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slices without elements are all the same."""
    count = x.shape[dim]
    places = torch.zeros(count, dtype=torch.int64, device=x.device)
    first = places[:1]
    return x.narrow(dim, 0, min(count, 1)).clone(), first.clone(), places, first + count
