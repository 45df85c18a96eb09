"""Sums of runs of equal indices, which lie in ascending order with their positions.

A program adds up the runs that begin in its chunk. Long ones are cut where a span of several chunks
ends; the last program that comes with a part of such a run adds up all parts.
"""

from __future__ import annotations

import functools
import math

import triton
import triton.language as tl

from onnxtrain.kernels.fast.common.launch import cdiv, power

CHUNK, SPANS = 16, 2048
"""Rows whose runs a program adds up, and most spans after which runs are cut."""
SPAN, WIDER, SHORT = 64, 128, 1 << 15
"""Fewest rows of a span, and of one where there are more indices than this."""
JOINED, FIRSTS = 16, 1024
"""Parts of a run that are added up at once, and spans whose first indices are looked at."""


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
def _last_run(words, first, count, R: tl.constexpr):
    """Where the last run begins that begins in a chunk, and if it is longer than a chunk."""
    key = _key(words, first + R - 1, count)
    same = tl.sum((_key(words, first + tl.arange(0, R), count) == key).to(tl.int32), 0)
    start = first + R - same
    begins = (key >= 0) & (_key(words, start - 1, count) != key)
    return start, key, begins & (_key(words, start + R, count) == key)


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
    strip,
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
    counter = arrived + border * strips + strip
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


@triton.jit
def add_runs(
    out,
    edges,
    arrived,
    values,
    words,
    count,
    columns,
    own,
    strip,
    ADDED: tl.constexpr,
    LONG: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    F: tl.constexpr,
    J: tl.constexpr,
    C: tl.constexpr,
):
    """Runs that begin in a chunk, or only those longer than it; before, those that span borders."""
    spans = tl.cdiv(count, W)
    column = strip * C + tl.arange(0, C)
    total = tl.zeros((C,), tl.float32)
    part = own * 2
    begins = own >= spans
    if begins:
        first = (own - spans) * R
        part = first // W * 2 + 1
        border = (first // W + 1) * W
        if LONG:
            first, key, goes_on = _last_run(words, first, count, R)
        else:
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
            arrived,
            words,
            key,
            total,
            count,
            columns,
            column,
            part,
            strip,
            ADDED,
            R,
            W,
            F,
            J,
            C,
        )


@functools.lru_cache(maxsize=1024)
def span_of(total: int, rows: int) -> int:
    """Rows after which runs are cut: long ones have about as many parts as parts have rows."""
    least = SPAN if total <= SHORT else WIDER
    return max(least, power(math.isqrt(total // rows)), power(cdiv(total, SPANS)))
