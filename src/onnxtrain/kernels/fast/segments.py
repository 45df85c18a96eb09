"""Sums of rows that have the same index, always in the same order: the gradient of Gather.

The rows are taken in the order of their indices, in chunks. A program adds up the runs of equal
indices inside its chunk; a run that goes on in the next chunk is finished by a second launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv, power

CHUNK, COLUMNS, CHUNK_WARPS, JOIN_WARPS = 8, 256, 2, 2
"""Rows and columns of a program, and warps: four columns a thread, of sums in float32 as well."""
RANKED = 1 << 14
"""Up to so many indices are put in order by counting, for each one, those before it."""
RANKS, COMPARED, RANK_WARPS = 64, 128, 4


@Compiled
@triton.jit
def _keys(keys, indices, count, rows, KIND: tl.constexpr, B: tl.constexpr):
    """Indices and then positions, as one number."""
    own = tl.program_id(0) * B + tl.arange(0, B)
    index = _wrapped(tl.load(indices + own, own < count, 0), rows)
    tl.store(keys + own, index.to(KIND) * count + own, own < count)


@Compiled
@triton.jit
def _rank(
    ascending,
    order,
    keys,
    count,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """Put each index where it belongs: after the smaller ones and the equal ones before it."""
    own = tl.program_id(0) * R + tl.arange(0, R)
    there = own < count
    key = tl.load(keys + own, there, 0)
    before = tl.zeros((R, B), tl.int32)
    whole = count // B * B
    for first in range(0, whole, B):
        compared = tl.load(keys + first + tl.arange(0, B))
        before += (compared[None, :] < key[:, None]).to(tl.int32)
    if whole < count:
        other = whole + tl.arange(0, B)
        compared = tl.load(keys + other, other < count, 0)
        less = (compared[None, :] < key[:, None]) & (other < count)[None, :]
        before += less.to(tl.int32)
    place = tl.sum(before, 1)
    tl.store(ascending + place, (key // count).to(tl.int32), there)
    tl.store(order + place, own, there)


@triton.jit
def _wrapped(index, rows):
    """An index in [0, rows), negative ones from the end, as the remainder of a division."""
    rest = index.to(tl.int32) % rows
    return tl.where(rest < 0, rest + rows, rest)


@Compiled
@triton.jit
def _chunks(
    out,
    edges,
    values,
    indices,
    order,
    count,
    columns,
    ADDED: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Runs inside a chunk go to the output, one that began before or goes on after to the edges.

    edges[chunk, 0] has what a run from before adds, [chunk, 1] what one that goes on begins with.
    """
    first = tl.program_id(0) * R
    column = tl.program_id(1) * C + tl.arange(0, C)
    edge = edges + first // R * 2 * columns.to(tl.int64) + column
    before = tl.load(indices + first - 1, first > 0, -1)
    index = tl.load(indices + first)
    head = (before == index).to(tl.int32)
    total = tl.zeros((C,), tl.float32)
    # so many loads are independent of each other
    for at in tl.static_range(R):
        there = first + at < count
        row = tl.load(order + first + at, there, 0).to(tl.int64)
        taken = column < tl.where(there, columns, 0)
        total += tl.load(values + row * columns + column, taken, 0.0).to(tl.float32)
        following = tl.load(indices + first + at + 1, first + at + 1 < count, -1)
        ends = (following != index) & there
        inside = column < tl.where(ends & (head == 0), columns, 0)
        place = out + index.to(tl.int64) * columns + column
        result = total
        if ADDED:
            result += tl.load(place, inside, 0.0).to(tl.float32)
        tl.store(place, result.to(out.dtype.element_ty), inside)
        tl.store(edge, total, column < tl.where(ends & (head > 0), columns, 0))
        if at == R - 1:
            # a run that covers the chunk belongs to one that began before, if it did
            goes_on = there & (following == index)
            side = tl.where(head > 0, 0, columns)
            tl.store(edge + side, total, column < tl.where(goes_on, columns, 0))
        total = tl.where(ends, 0.0, total)
        head = tl.where(ends, 0, head)
        index = following


@Compiled
@triton.jit
def _join(
    out, edges, indices, count, columns, ADDED: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
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
        if ADDED:
            total += tl.load(out + at, fits, 0.0).to(tl.float32)
        tl.store(out + at, total.to(out.dtype.element_ty), fits)


def sum_rows(indices: Tensor, values: Tensor, count: int, base: Tensor | None = None) -> Tensor:
    """out[r] = sum of values[n] over all n with indices[n] == r modulo count.

    It is added to the base, in place, if there is one.
    """
    total, columns = values.shape
    ascending, order = _in_order(indices, count)
    added = base is not None
    out = values.new_zeros((count, columns)) if base is None else base
    width = min(power(columns), COLUMNS)
    chunks, across = cdiv(total, CHUNK), cdiv(columns, width)
    edges = torch.empty((chunks, 2, columns), dtype=torch.float32, device=values.device)
    _chunks[(chunks, across)](
        out,
        edges,
        values,
        ascending,
        order,
        total,
        columns,
        added,
        CHUNK,
        width,
        num_warps=CHUNK_WARPS,
    )
    if chunks > 1:
        _join[(chunks - 1, across)](
            out, edges, ascending, total, columns, added, CHUNK, width, num_warps=JOIN_WARPS
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
    wide = (total + 1) * (count + 1) >= 1 << 31
    keys = torch.empty(total, dtype=torch.int64 if wide else torch.int32, device=indices.device)
    kind = tl.int64 if wide else tl.int32
    _keys[(cdiv(total, 1024),)](keys, indices, total, count, kind, 1024, num_warps=4)
    ascending, order = torch.empty((2, total), dtype=torch.int32, device=indices.device).unbind()
    _rank[(cdiv(total, RANKS),)](
        ascending, order, keys, total, RANKS, COMPARED, num_warps=RANK_WARPS
    )
    return ascending, order
