"""Slices picked by index tuples, with the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.indices import flat_rows, sum_rows
from onnxtrain.kernels.tensor.movable import picked
from onnxtrain.types import FLOATS, INTS, MS


@kernel("GatherND", Tind=INTS)
def gather_nd(data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """out[b, n, :] = data[b, indices[b, n, 0], indices[b, n, 1], ..., :]."""
    indexed = _indexed(data.shape, indices, batch_dims)
    rows = flat_rows(indices, indexed, data.shape[:batch_dims])
    rest = data.shape[batch_dims + len(indexed) :]
    table = data.reshape(math.prod(data.shape[:batch_dims]) * math.prod(indexed), *rest)
    return picked(table, 0, rows).reshape((*indices.shape[:-1], *rest))


@kernel("GatherNDGrad", domain=MS, host=["shape"], needs=["deterministic"], T=FLOATS)
def gather_nd_grad(
    shape: list[int], indices: Tensor, update: Tensor, *, batch_dims: int = 0, deterministic: bool
) -> Tensor:
    """dx[b, indices[b, n, 0], indices[b, n, 1], ..., :] += update[b, n, :]."""
    indexed = _indexed(shape, indices, batch_dims)
    if list(update.shape[:batch_dims]) != shape[:batch_dims]:
        raise ValueError(
            f"the first {batch_dims} dimensions of update {list(update.shape)} and {shape} differ"
        )
    if update.numel() == 0 or 0 in shape:
        return update.new_zeros(shape)
    rows = flat_rows(indices, indexed, shape[:batch_dims])
    count = math.prod(shape[:batch_dims]) * math.prod(indexed)
    values = update.reshape(rows.numel(), -1)
    return sum_rows(rows, values, count, ordered=deterministic).reshape(shape)


def _indexed(shape: Sequence[int], indices: Tensor, batch_dims: int) -> Sequence[int]:
    """The dimensions that the index tuples address."""
    if indices.ndim == 0:
        raise ValueError("indices must have rank >= 1")
    count = indices.shape[-1]
    if batch_dims + count > len(shape) or batch_dims >= indices.ndim:
        raise ValueError(
            f"batch_dims {batch_dims} and index tuples of length {count} need a rank of at least "
            f"{batch_dims + count}, the data has shape {list(shape)}"
        )
    if list(indices.shape[:batch_dims]) != list(shape[:batch_dims]):
        raise ValueError(
            f"the first {batch_dims} dimensions of indices {list(indices.shape)} "
            f"and of the data {list(shape)} differ"
        )
    return shape[batch_dims : batch_dims + count]
