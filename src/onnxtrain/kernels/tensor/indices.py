"""Index tensors: negative entries, entries out of range, and sums over equal entries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.precision import acc, widen


def wrapped(indices: Tensor, size: int) -> Tensor:
    """Indices in [0, size); negative ones count from the end.

    An index out of range is an error on the CPU. The host does not see a GPU's indices: there it
    wraps around once more, so that no memory outside of the tensor is ever touched.

    Raises:
        ValueError: if an index is out of range.
    """
    if indices.numel() == 0:
        return indices
    if size == 0:
        raise ValueError("indices must be empty for an axis of size 0")
    if indices.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = (int(end) for end in indices.aminmax())
        if low < -size or high >= size:
            wrong = low if low < -size else high
            raise ValueError(f"index {wrong} is out of range [{-size},{size - 1}]")
        if low >= 0:
            return indices
    return indices.remainder(size)


def flat_rows(indices: Tensor, sizes: Sequence[int], batch: Sequence[int] = ()) -> Tensor:
    """Row numbers of index tuples (the last axis) into ``batch + sizes`` flattened to one axis.

    The leading axes of ``indices`` that belong to ``batch`` select their own block of rows.
    """
    rows = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=indices.device)
    for k, size in enumerate(sizes):
        rows = rows * size + wrapped(indices[..., k], size)
    if batch:
        blocks = torch.arange(math.prod(batch), device=indices.device)
        blocks = blocks.reshape([*batch, *[1] * (rows.ndim - len(batch))])
        rows = rows + blocks * math.prod(sizes)
    return rows.reshape(-1)


def sum_rows(rows: Tensor, values: Tensor, count: int, *, ordered: bool) -> Tensor:
    """out[r] = sum of values[n] over all n with rows[n] == r.

    With ``ordered`` the additions happen in a fixed order on every device. Sums of 16-bit values
    are made in float32 and rounded once.
    """
    # on a CPU torch adds rows of 16 bits in float32 by itself
    if acc(values.dtype) is values.dtype or not values.is_cuda or not rows.numel():
        return _sums(rows, values, count, ordered)
    # Only the rows that occur are summed in float32: a table may be much larger than they are.
    ascending, order = rows.sort(stable=True)
    starts = ascending.diff(prepend=ascending[:1]) != 0
    segments = starts.cumsum(0)
    sums = _sums(segments, widen(values.index_select(0, order)), rows.numel(), ordered)
    # Segments that do not exist go to one more row, which is cut off.
    found = torch.full_like(ascending, count).scatter_(0, segments, ascending)
    result = values.new_zeros((count + 1, values.shape[1]))
    return result.index_copy_(0, found, sums.to(values.dtype))[:count]


def _sums(rows: Tensor, values: Tensor, count: int, ordered: bool) -> Tensor:
    total = values.new_zeros((count, values.shape[1]))
    if values.device.type == "cpu":
        return total.scatter_add_(0, rows[:, None].expand_as(values), values)
    if ordered:
        return total.index_put_((rows,), values, accumulate=True)
    return total.index_add_(0, rows, values)


def add_at(total: Tensor, axis: int, index: Tensor, values: Tensor, *, ordered: bool) -> None:
    """total[m with m[axis] replaced by index[m]] += values[m], in place.

    With ``ordered`` the additions happen in a fixed order on every device.
    """
    if not ordered or total.device.type == "cpu":
        total.scatter_add_(axis, index, values)
        return
    steps = [torch.arange(n, device=index.device) for n in index.shape]
    places = list(torch.meshgrid(*steps, indexing="ij"))
    places[axis] = index
    total.index_put_(tuple(places), values, accumulate=True)
