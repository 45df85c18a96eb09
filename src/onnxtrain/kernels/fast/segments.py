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

CHUNK, COLUMNS, CHUNK_WARPS = 16, 256, 2
"""Rows and columns of a program, and warps: four columns a thread, of sums in float32 as well."""
JOINED, JOIN_COLUMNS, JOIN_WARPS = 16, 256, 4
"""Chunks whose sums are added up at once, columns and warps of a program that does it."""
COUNTED, DIGIT = 1 << 18, 9
"""Up to so many indices are put in order by counting, at most so many of their bits at a time."""
SEEN, GROUP, SEEN_WARPS, SEEN_REGISTERS = 2048, 4, 8, 40
"""Indices that a program and a thread look at together, warps, and registers of a thread."""
CLEARED = 1 << 16
"""Bytes that a program clears."""


@triton.jit
def _wrapped(index, rows):
    """An index in [0, rows), negative ones from the end, as the remainder of a division."""
    rest = index.to(tl.int32) % rows
    return tl.where(rest < 0, rest + rows, rest)


@Compiled
@triton.jit
def _keys(keys, indices, count, rows, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(keys + at, _wrapped(tl.load(indices + at, at < count, 0), rows), at < count)


@triton.jit
def _digits(
    keys,
    first,
    count,
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    B: tl.constexpr,
    W: tl.constexpr,
):
    """So many positions and keys, and a few bits of these, one more for those there are not."""
    at = first + tl.arange(0, B)[:, None] * W + tl.arange(0, W)[None, :]
    key = tl.load(keys + at, at < count, 0)
    digit = (key >> SHIFT) & ((1 << BITS) - 1)
    return at, key, tl.where(at < count, digit, 1 << BITS)


@Compiled
@triton.jit
def _sort(
    ascending,
    order,
    keys,
    positions,
    cleared,
    count,
    clear_from,
    clear_to,
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    FIRST: tl.constexpr,
    B: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
):
    """Put keys that have this program's digit behind those of smaller ones, in their old order.

    Programs beyond the last digit clear memory meanwhile.
    """
    own = tl.program_id(0)
    if own < (1 << BITS):
        before = tl.zeros((B, W), tl.int32)
        for first in range(0, count, B * W):
            _, _, digit = _digits(keys, first, count, SHIFT, BITS, B, W)
            before += (digit < own).to(tl.int32)
        place = tl.sum(tl.sum(before, 1), 0)
        for first in range(0, count, B * W):
            at, key, digit = _digits(keys, first, count, SHIFT, BITS, B, W)
            chosen = (digit == own).to(tl.int32)
            each = tl.sum(chosen, 1)
            target = place + (tl.cumsum(each, 0) - each)[:, None] + tl.cumsum(chosen, 1) - 1
            tl.store(ascending + target, key, chosen > 0)
            position = at if FIRST else tl.load(positions + at, chosen > 0, 0)
            tl.store(order + target, position, chosen > 0)
            place += tl.sum(each, 0)
    else:
        begin = clear_from + (own - (1 << BITS)).to(tl.int64) * C
        for step in range(0, C, 4096):
            at = begin + step + tl.arange(0, 4096)
            tl.store(cleared + at, tl.zeros((4096,), cleared.dtype.element_ty), at < clear_to)


@triton.jit
def _rows_of(values, order, first, count, columns, column, R: tl.constexpr):
    """Rows of a chunk, all on their way before anything is stored, which would come between."""
    held = ()
    for at in tl.static_range(R):
        there = first + at < count
        row = tl.load(order + first + at, there, 0).to(tl.int64)
        taken = column < tl.where(there, columns, 0)
        held += (tl.load(values + row * columns + column, taken, 0.0),)  # type: ignore[assignment]
    return held


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
    held = _rows_of(values, order, first, count, columns, column, R)
    for at in tl.static_range(R):
        there = first + at < count
        total += held[at].to(tl.float32)
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
    out,
    edges,
    indices,
    count,
    columns,
    ADDED: tl.constexpr,
    R: tl.constexpr,
    J: tl.constexpr,
    C: tl.constexpr,
):
    """Finish the run that begins in a chunk and goes on in later ones, many of them at once."""
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
        goes_on = J
        while goes_on == J:
            # the run goes on in every chunk that begins with its index
            later = chunk + 1 + tl.arange(0, J)
            belongs = tl.load(indices + later * R, later * R < count, -1) == index
            place = later.to(tl.int64)[:, None] * 2 * columns + column[None, :]
            total += tl.sum(tl.load(edges + place, belongs[:, None] & fits[None, :], 0.0), 0)
            goes_on = tl.sum(belongs.to(tl.int32), 0)
            chunk += J
        at = index.to(tl.int64) * columns + column
        if ADDED:
            total += tl.load(out + at, fits, 0.0).to(tl.float32)
        tl.store(out + at, total.to(out.dtype.element_ty), fits)


def sum_rows(indices: Tensor, values: Tensor, count: int, base: Tensor | None = None) -> Tensor:
    """out[r] = sum of values[n] over all n with indices[n] == r modulo count.

    It is added to the base, in place, if there is one.
    """
    total, columns = values.shape
    out = values.new_empty((count, columns)) if base is None else base
    ascending, order = _in_order(indices, count, out if base is None else None)
    added = base is not None
    width = min(power(columns), COLUMNS)
    chunks = cdiv(total, CHUNK)
    edges = torch.empty((chunks, 2, columns), dtype=torch.float32, device=values.device)
    _chunks[(chunks, cdiv(columns, width))](
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
        width = min(power(columns), JOIN_COLUMNS)
        _join[(chunks - 1, cdiv(columns, width))](
            out,
            edges,
            ascending,
            total,
            columns,
            added,
            CHUNK,
            JOINED,
            width,
            num_warps=JOIN_WARPS,
        )
    return out


def _in_order(indices: Tensor, count: int, cleared: Tensor | None) -> tuple[Tensor, Tensor]:
    """Indices modulo the count in ascending order, and where each one was; memory is cleared."""
    total, bits = indices.numel(), max(1, (count - 1).bit_length())
    if total > COUNTED:
        if cleared is not None:
            cleared.zero_()
        return indices.remainder(count).to(torch.int32).sort(stable=True)
    passes = cdiv(bits, DIGIT)
    digit = cdiv(bits, passes)
    kept = torch.empty((2 * passes + 1, total), dtype=torch.int32, device=indices.device).unbind()
    _keys[(cdiv(total, 1024),)](kept[-1], indices, total, count, 1024, num_warps=4)
    size = 0 if cleared is None else cleared.numel()
    share = CLEARED // (1 if cleared is None else cleared.dtype.itemsize)
    part = cdiv(cdiv(size, passes), share) * share
    source = kept[-1], kept[-1]
    for number in range(passes):
        target = kept[2 * number], kept[2 * number + 1]
        _sort[((1 << digit) + cdiv(max(0, min(part, size - number * part)), share),)](
            *target,
            *source,
            kept[0] if cleared is None else cleared,
            total,
            number * part,
            min(size, number * part + part),
            number * digit,
            digit,
            number == 0,
            max(1, min(power(total), SEEN) // GROUP),
            GROUP,
            share,
            num_warps=SEEN_WARPS,
            maxnreg=SEEN_REGISTERS,
        )
        source = target
    return source
