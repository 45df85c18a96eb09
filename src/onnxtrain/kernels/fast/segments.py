"""Sums of rows that have the same index, always in the same order: the gradient of Gather.

The rows are taken in the order of their indices, in chunks. A program adds up the runs of equal
indices inside its chunk; a run that goes on in the next chunk is finished by a second launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.launch import power

CHUNK = 32
RANKED = 1 << 14
"""Up to so many indices are put in order by counting, for each one, those before it."""
RANKS, COMPARED, RANK_WARPS = 64, 128, 4


@triton.jit
def _rank(
    ascending,
    order,
    indices,
    count,
    rows,
    KIND: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """Put each index where it belongs: after the smaller ones and the equal ones before it."""
    own = tl.program_id(0) * R + tl.arange(0, R)
    there = own < count
    index = _wrapped(tl.load(indices + own, there, 0), rows)
    # indices and then positions, as one number
    key = (index.to(KIND) * count + own)[:, None]
    before = tl.zeros((R, B), tl.int32)
    for first in range(0, count, B):
        other = first + tl.arange(0, B)
        # what does not exist comes last
        compared = _wrapped(tl.load(indices + other, other < count, 0), rows)
        compared = tl.where(
            other < count, compared.to(KIND) * count + other, tl.full((), rows, KIND) * count
        )
        before += (compared[None, :] < key).to(tl.int32)
    place = tl.sum(before, 1)
    tl.store(ascending + place, index, there)
    tl.store(order + place, own, there)


@triton.jit
def _wrapped(index, rows):
    """An index in [0, rows), negative ones from the end, as the remainder of a division."""
    rest = index.to(tl.int32) % rows
    return tl.where(rest < 0, rest + rows, rest)


@triton.jit
def _chunks(
    out,
    edges,
    values,
    indices,
    order,
    count,
    columns,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Runs inside a chunk go to the output, one that began before or goes on after to the edges."""
    first = tl.program_id(0) * R
    place = first + tl.arange(0, R)
    there = place < count
    index = tl.load(indices + place, there, -1)
    before = tl.load(indices + place - 1, there & (place > 0), -2)
    begins = (index != before) & there
    begins = begins | (place == first)
    run = tl.cumsum(begins.to(tl.int32), 0) - 1
    column = tl.program_id(1) * C + tl.arange(0, C)
    fits = column < columns
    row = tl.load(order + place, there, 0)
    data = tl.load(
        values + row.to(tl.int64)[:, None] * columns + column[None, :],
        there[:, None] & fits[None, :],
        0.0,
    )
    slot = tl.arange(0, R)
    member = (slot[:, None] == run[None, :]) & there[None, :]
    sums = tl.dot(member.to(data.dtype), data, input_precision="ieee", out_dtype=tl.float32)
    # what each run needs to know, moved from its rows to its slot
    runs = tl.max(tl.where(there, run, -1), 0)
    target = tl.max(tl.where(member, index[None, :].to(tl.int32), -1), 1)
    continued = tl.load(indices + first - 1, first > 0, -2) == tl.load(indices + first)
    end = first + R
    goes_on = tl.load(indices + end, end < count, -3) == tl.load(indices + end - 1, end < count, -4)
    is_first, is_last = slot == 0, slot == runs
    head = tl.where(is_first, continued.to(tl.int32), 0) > 0
    edge = head | (tl.where(is_last, goes_on.to(tl.int32), 0) > 0)
    whole = (slot <= runs) & (edge == 0)
    at = target.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out + at, sums.to(out.dtype.element_ty), whole[:, None] & fits[None, :])
    # edges[chunk, 0] has what a run from before adds, [chunk, 1] what one that goes on begins with
    side = tl.where(head, 0, 1)
    spot = (tl.program_id(0).to(tl.int64) * 2 + side)[:, None] * columns + column[None, :]
    tl.store(edges + spot, sums, edge[:, None] & fits[None, :])


@triton.jit
def _join(out, edges, indices, count, columns, R: tl.constexpr, C: tl.constexpr):
    """Finish the run that begins in a chunk and goes on in later ones."""
    chunk = tl.program_id(0)
    end = (chunk + 1) * R
    index = tl.load(indices + end - 1)
    first = tl.load(indices + chunk * R)
    before = tl.load(indices + chunk * R - 1, chunk > 0, -2)
    begins = (first != index) | (before != index)
    if begins & (tl.load(indices + end) == index):
        column = tl.program_id(1) * C + tl.arange(0, C)
        fits = column < columns
        total = tl.load(edges + (chunk.to(tl.int64) * 2 + 1) * columns + column, fits, 0.0)
        following = index
        while following == index:
            chunk += 1
            total += tl.load(edges + chunk.to(tl.int64) * 2 * columns + column, fits, 0.0)
            end = (chunk + 1) * R
            # the run ends in this chunk unless its last row and the next one belong to it
            following = tl.load(indices + end, end < count, -1)
        at = index.to(tl.int64) * columns + column
        tl.store(out + at, total.to(out.dtype.element_ty), fits)


def sum_rows(indices: Tensor, values: Tensor, count: int) -> Tensor:
    """out[r] = sum of values[n] over all n with indices[n] == r modulo count."""
    total, columns = values.shape
    ascending, order = _in_order(indices, count)
    out = torch.zeros((count, columns), dtype=values.dtype, device=values.device)
    width = min(power(columns), 128)
    chunks, across = triton.cdiv(total, CHUNK), triton.cdiv(columns, width)
    edges = torch.empty((chunks, 2, columns), dtype=torch.float32, device=values.device)
    _chunks[(chunks, across)](
        out, edges, values, ascending, order, total, columns, CHUNK, max(width, 16), num_warps=4
    )
    if chunks > 1:
        _join[(chunks - 1, across)](
            out, edges, ascending, total, columns, CHUNK, width, num_warps=1
        )
    return out


def _in_order(indices: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices modulo the count in ascending order, and where each one was."""
    total = indices.numel()
    if total > RANKED:
        # fewer bits are sorted in fewer passes
        kind, shift = (torch.int16, 1 << 15) if count <= 1 << 16 else (torch.int32, 0)
        keys, order = (indices.remainder(count) - shift).to(kind).sort(stable=True)
        return keys.to(torch.int32) + shift, order
    ascending = torch.empty(total, dtype=torch.int32, device=indices.device)
    order = torch.empty_like(ascending)
    kind = tl.int64 if (total + 1) * (count + 1) >= 1 << 31 else tl.int32
    _rank[(triton.cdiv(total, RANKS),)](
        ascending, order, indices, total, count, kind, RANKS, COMPARED, num_warps=RANK_WARPS
    )
    return ascending, order
