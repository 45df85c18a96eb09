"""Sums of rows that have the same index, always in the same order: the gradient of Gather.

The rows are taken in the order of their indices. A program adds up the runs of equal indices that
begin in its chunk. Long runs are cut where a span of several chunks ends; the last program that
comes with a part of such a run adds up all parts.
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv, power
from onnxtrain.kernels.fast.order import SHORT, Sorted, in_order, zero_rows
from onnxtrain.kernels.fast.shares import overlaps

CHUNK, SPANS = 16, 2048
"""Rows whose runs a program adds up, and most spans after which runs are cut."""
SPAN, WIDER = 64, 128
"""Fewest rows of a span, and of one where the sort is not short."""
COLUMNS, WARPS = {2: 1024, 4: 256}, {2: 4, 4: 2}
"""Columns and warps of a program, by the bytes of an element."""
JOINED, FIRSTS = 16, 1024
"""Parts of a run that are added up at once, and spans whose first indices are looked at."""
CLEARED = 16
"""Rows that a program clears."""
COUNTED = 1 << 18
"""Up to so many indices are put in order by counting."""


@triton.jit
def _key(words, at, count):
    """An index, in the high half of its word; -1 before the first and behind the last."""
    return (tl.load(words + at, (at >= 0) & (at < count), -1) >> 32).to(tl.int32)


@triton.jit
def _words_of(words, first, count, N: tl.constexpr):
    """So many words, -1 behind the last."""
    held = ()
    for at in tl.static_range(N):
        held += (tl.load(words + first + at, first + at < count, -1),)  # type: ignore[assignment]
    return held


@triton.jit
def _rows_of(values, found, columns, column, key, SAME: tl.constexpr, R: tl.constexpr):
    """Rows that have an index, or another one, all on their way before anything else is done."""
    held = ()
    for at in tl.static_range(R):
        same = (found[at] >> 32).to(tl.int32) == key
        wanted = (same if SAME else same == 0) & (found[at] >= 0)
        row = (found[at] & 0x7FFFFFFF) * columns
        held += (tl.load(values + row + column, column < tl.where(wanted, columns, 0), 0.0),)  # type: ignore[assignment]
    return held


@triton.jit
def _old_rows(out, found, columns, column, skipped, R: tl.constexpr):
    """What is in the rows of runs that end in a chunk."""
    held = ()
    for at in tl.static_range(R):
        index = found[at] >> 32
        ends = ((found[at + 1] >> 32) != index) & (index != skipped) & (index >= 0)
        taken = column < tl.where(ends, columns, 0)
        held += (tl.load(out + index * columns + column, taken, 0.0),)  # type: ignore[assignment]
    return held


@triton.jit
def _on(values, words, first, end, columns, column, key, total, R: tl.constexpr):
    """The sum of a run that goes on, at most to the end."""
    found = _words_of(words, first, end, R)
    while (found[0] >> 32).to(tl.int32) == key:
        held = _rows_of(values, found, columns, column, key, True, R)
        first += R
        # on their way together with the rows
        found = _words_of(words, first, end, R)
        for at in tl.static_range(R):
            total += held[at].to(tl.float32)
    return total


@triton.jit
def _chunk(
    out,
    values,
    words,
    first,
    count,
    columns,
    column,
    total,
    ADDED: tl.constexpr,
    R: tl.constexpr,
):
    """Store the sums of runs that begin and end in a chunk; its last run, and if that goes on."""
    skipped = _key(words, first - 1, count)
    key = skipped
    found = _words_of(words, first, count, R + 1)
    held = _rows_of(values, found, columns, column, skipped, False, R)
    if ADDED:
        old = _old_rows(out, found, columns, column, skipped, R)
    for at in tl.static_range(R):
        key = (found[at] >> 32).to(tl.int32)
        total += held[at].to(tl.float32)
        ends = ((found[at + 1] >> 32).to(tl.int32) != key) & (key != skipped) & (key >= 0)
        result = total
        if ADDED:
            result += old[at].to(tl.float32)
        taken = column < tl.where(ends, columns, 0)
        place = out + key.to(tl.int64) * columns + column
        tl.store(place, result.to(out.dtype.element_ty), taken)
        total = tl.where(ends, 0.0, total)
    goes_on = ((found[R] >> 32).to(tl.int32) == key) & (key != skipped) & (key >= 0)
    return key, total, goes_on


@triton.jit
def _reaches(words, border, count, key, R: tl.constexpr):
    """Whether a run goes on so far behind a border that it is cut there."""
    return (_key(words, border, count) == key) & (_key(words, border + R - 1, count) == key)


@triton.jit
def _end_of(words, border, count, key, R: tl.constexpr):
    """Where a part of a run ends at the latest: at the border or a little behind it."""
    return min(border + tl.where(_reaches(words, border, count, key, R), 0, R), count)


@triton.jit
def _store(out, key, total, columns, column, ADDED: tl.constexpr):
    place = out + key.to(tl.int64) * columns + column
    if ADDED:
        total += tl.load(place, column < columns, 0.0).to(tl.float32)
    tl.store(place, total.to(out.dtype.element_ty), column < columns)


@triton.jit
def _join(
    out,
    edges,
    arrived,
    words,
    key,
    total,
    count,
    columns,
    column,
    part,
    ADDED: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    F: tl.constexpr,
    J: tl.constexpr,
    C: tl.constexpr,
):
    """Leave a part of a run; who comes last adds up all parts from the first on."""
    tl.store(edges + part.to(tl.int64) * columns + column, total, column < columns)
    spans = tl.cdiv(count, W)
    less = tl.zeros((F,), tl.int32)
    same = tl.zeros((F,), tl.int32)
    for first in range(0, spans, F):
        reached = _key(words, (first + tl.arange(0, F)) * W + R - 1, count)
        less += ((reached >= 0) & (reached < key)).to(tl.int32)
        same += (reached == key).to(tl.int32)
    border = tl.sum(less, 0)
    end = border + tl.sum(same, 0)
    # the span in which it begins
    start = border - (_key(words, border * W - 1, count) == key).to(tl.int32)
    tl.debug_barrier()
    strips = tl.cdiv(columns, C)
    counter = arrived + border * strips + tl.program_id(0) % strips
    if tl.atomic_add(counter, 1, sem="acq_rel") == end - start - 1:
        tl.debug_barrier()
        tl.store(counter, 0)
        fits = column < columns
        begun = edges + (start * 2 + 1).to(tl.int64) * columns + column
        total = tl.load(begun, fits, 0.0, cache_modifier=".cg")
        for first in range(start + 1, end, J):
            span = first + tl.arange(0, J)
            at = (span * 2).to(tl.int64)[:, None] * columns + column[None, :]
            mask = (span < end)[:, None] & fits[None, :]
            total += tl.sum(tl.load(edges + at, mask, 0.0, cache_modifier=".cg"), 0)
        _store(out, key, total, columns, column, ADDED)


@Compiled
@triton.jit(do_not_specialize=["count", "rows", "marks", "blocks"])
def _sums(
    out,
    edges,
    numbers,
    values,
    words,
    count: tl.int32,
    columns,
    rows: tl.int32,
    marks: tl.int32,
    blocks: tl.int32,
    ADDED: tl.constexpr,
    OVERLAPS: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    F: tl.constexpr,
    J: tl.constexpr,
    C: tl.constexpr,
    Z: tl.constexpr,
):
    """Runs that begin in a chunk; the first programs take those that a span begins within."""
    if OVERLAPS:
        gdc_wait()
    spans = tl.cdiv(count, W)
    strips = tl.cdiv(columns, C)
    strip = tl.program_id(0) % strips
    column = strip * C + tl.arange(0, C)
    own = tl.program_id(0) // strips
    clears = (own % 2 == 0) & (own // 2 < blocks)
    if clears:
        row = own // 2 * Z + tl.arange(0, Z)
        marked = tl.load(numbers + marks + row, row < rows, 1)
        zero_rows(out, row, marked == 0, columns, column, Z, C)
        return
    own -= tl.minimum(blocks, (own + 1) // 2)
    total = tl.zeros((C,), tl.float32)
    part = own * 2
    begins = own >= spans
    if begins:
        first = (own - spans) * R
        part = first // W * 2 + 1
        border = (first // W + 1) * W
        key, total, goes_on = _chunk(
            out, values, words, first, count, columns, column, total, ADDED, R
        )
        first += R
    else:
        first = own * W
        key = _key(words, first - 1, count)
        goes_on = _reaches(words, first, count, key, R)
        border = first + W
    cut = False
    if goes_on:  # in one place for both: the compiler takes long for what it finds twice
        end = _end_of(words, border, count, key, R)
        total = _on(values, words, first, end, columns, column, key, total, R)
        cut = (begins == 0) | _reaches(words, border, count, key, R)
        if not cut:
            _store(out, key, total, columns, column, ADDED)
    if cut:
        _join(
            out,
            edges,
            numbers,
            words,
            key,
            total,
            count,
            columns,
            column,
            part,
            ADDED,
            R,
            W,
            F,
            J,
            C,
        )


def sum_rows(indices: Tensor, values: Tensor, count: int, base: Tensor | None = None) -> Tensor:
    """out[r] = sum of values[n] over all n with indices[n] == r modulo count.

    It is added to the base, in place, if there is one.
    """
    total, columns = values.shape
    out = values.new_empty((count, columns)) if base is None else base
    size = values.dtype.itemsize
    width = min(power(columns), COLUMNS[size])
    span = _span(total, count)
    strips, spans = cdiv(columns, width), cdiv(total, span)
    cleared = out if base is None else None
    found = _in_order(indices, count, cleared, spans * strips, spans * 2 * columns)
    # half as many where registers hold what is there as well
    chunk = CHUNK if base is None else CHUNK // 2
    programs, blocks = spans + cdiv(total, chunk), cdiv(found.uncleared, CLEARED)
    overlapping = overlaps(values.device)
    # every other program clears until all rows are cleared
    _sums[(strips * (blocks + max(programs, blocks)),)](
        out,
        found.edges,
        found.numbers,
        values,
        found.words,
        total,
        columns,
        found.uncleared,
        found.marks,
        blocks,
        base is not None,
        overlapping,
        chunk,
        span,
        min(power(spans), FIRSTS),
        JOINED,
        width,
        CLEARED,
        num_warps=WARPS[size],
        **({"launch_pdl": True} if overlapping else {}),
    )
    return out


@functools.lru_cache(maxsize=1024)
def _span(total: int, rows: int) -> int:
    """Rows after which runs are cut: long ones have about as many parts as parts have rows."""
    least = SPAN if total <= SHORT else WIDER
    return max(least, power(math.isqrt(total // rows)), power(cdiv(total, SPANS)))


def _in_order(indices: Tensor, rows: int, cleared: Tensor | None, spare: int, edges: int) -> Sorted:
    """Indices in ascending order, with zeros to spare and memory for edges."""
    if indices.numel() <= COUNTED:
        return in_order(indices, rows, cleared, spare, edges)
    if cleared is not None:
        cleared.zero_()
    device = indices.device
    ascending, positions = indices.remainder(rows).long().sort(stable=True)
    zeros = torch.zeros(spare, dtype=torch.int32, device=device)
    memory = torch.empty(edges, dtype=torch.float32, device=device)
    return Sorted((ascending << 32) | positions, zeros, memory, 0, 0)
