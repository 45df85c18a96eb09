"""Indices in ascending order, equal ones as they came, by programs that wait for each other.

Digit by digit from the lowest, each program counts the digits of its block. When all have counted,
it knows where its own indices go.
"""

from __future__ import annotations

import triton
import triton.language as tl

from onnxtrain.kernels.fast.common.counters import meet

HELD, HALF = tl.constexpr(128), tl.constexpr(1 << 15)
"""Most blocks whose counts are added up at once, and indices whose count fits into half a word."""
END = tl.constexpr(0x7FFFFFFF)
"""Stands for the indices that the last block lacks: behind all others in every digit."""


@triton.jit
def wrapped(index, rows):
    """An index in [0, rows), negative ones from the end, as the remainder of a division."""
    rest = index.to(tl.int32) % rows
    return tl.where(rest < 0, rest + rows, rest)


@triton.jit
def _words(indices, source, at, count, rows, FIRST: tl.constexpr):
    """Indices and their positions, in the high and the low half of a word."""
    if FIRST:
        there = at < count
        key = tl.where(there, wrapped(tl.load(indices + at, there, 0), rows), END)
        return (key.to(tl.int64) << 32) | at
    else:
        return tl.load(source + at, cache_modifier=".cg")


@triton.jit
def _digit(words, SHIFT: tl.constexpr, D: tl.constexpr):
    """So many bits of the indices in words."""
    return (words >> (32 + SHIFT)).to(tl.int32) & (D - 1)


@triton.jit
def _count(indices, numbers, programs, count, rows, zeros, B: tl.constexpr, D: tl.constexpr):
    """Counts of a block's lowest digits, two of them in a number; those in front are zeroed."""
    own = tl.program_id(0)
    words = _words(indices, numbers, own * B + tl.arange(0, B), count, rows, True)
    for first in range(own * 512, zeros, programs * 512):
        at = first + tl.arange(0, 512)
        tl.store(numbers + at, tl.zeros((512,), tl.int32), at < zeros)
    found = tl.histogram(_digit(words, 0, D), D)
    even, odd = tl.split(tl.reshape(found, (D // 2, 2)))
    place = numbers + zeros + own * (D // 2) + tl.arange(0, D // 2)
    tl.store(place, even | (odd << 16))


@triton.jit
def _begins(table, own, programs, B: tl.constexpr, K: tl.constexpr, D: tl.constexpr):
    """Where a program's indices of each digit go: behind smaller ones, and blocks before."""
    # counts of so many blocks fit into halves of words, and the words into registers
    N: tl.constexpr = min(K, max(1, min(HELD, HALF // B)))
    total = tl.zeros((D,), tl.int32)
    before = tl.zeros((D,), tl.int32)
    for first in range(0, K, N):
        block = first + tl.arange(0, N)
        at = block[:, None] * (D // 2) + tl.arange(0, D // 2)[None, :]
        found = tl.load(table + at, (block < programs)[:, None], 0, cache_modifier=".cg")
        total += _apart(tl.sum(found, 0), D)
        before += _apart(tl.sum(tl.where((block < own)[:, None], found, 0), 0), D)
    return tl.cumsum(total, 0) - total + before


@triton.jit
def _apart(pairs, D: tl.constexpr):
    """The two counts of each word, one after the other."""
    return tl.reshape(tl.join(pairs & 0xFFFF, (pairs >> 16) & 0xFFFF), (D,))


@triton.jit
def _places(begin, digit, G: tl.constexpr, S: tl.constexpr, D: tl.constexpr):
    """Where indices go that come in groups, and where the next ones of the same digits go."""
    local = tl.arange(0, S)
    earlier = (local[:, None] < local[None, :])[None, :, :]
    same = (digit[:, :, None] == digit[:, None, :]) & earlier
    before = tl.sum(same.to(tl.int32), 1)
    number = tl.reshape(tl.arange(0, G)[:, None] * D + digit, (G * S,))
    found = tl.reshape(tl.histogram(number, G * D), (G, D))
    start = tl.reshape(begin[None, :] + tl.cumsum(found, 0) - found, (G * D,))
    return tl.reshape(tl.gather(start, number, 0), (G, S)) + before, begin + tl.sum(found, 0)


@triton.jit
def _place(
    indices,
    words,
    numbers,
    programs,
    count,
    rows,
    zeros,
    spare,
    STEP: tl.constexpr,
    PASSES: tl.constexpr,
    BITS: tl.constexpr,
    MARKS: tl.constexpr,
    B: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    K: tl.constexpr,
):
    """Move a block's indices to where they belong by one digit, and count the next digits there."""
    own = tl.program_id(0)
    D: tl.constexpr = 1 << BITS
    SHIFT: tl.constexpr = (STEP - 1) * BITS
    # moves go to and fro so that the last one ends in front; tables lie in the opposite order
    source = words + (PASSES - STEP + 1) % 2 * programs * B
    target = words + (PASSES - STEP) % 2 * programs * B
    size = programs * (D // 2)
    following = numbers + spare + (PASSES - 1 - STEP) * size
    table = numbers + zeros if STEP == 1 else following + size
    marks = numbers + spare + (PASSES - 1) * size
    at = own * B + tl.arange(0, G)[:, None] * S + tl.arange(0, S)[None, :]
    moved = _words(indices, source, at, count, rows, STEP == 1)
    begin = _begins(table, own, programs, B, K, D)
    for first in range(0, B, G * S):
        place, begin = _places(begin, _digit(moved, SHIFT, D), G, S, D)
        tl.store(target + place, moved)
        if MARKS:
            key = (moved >> 32).to(tl.int32)
            tl.store(marks + key, tl.full((G, S), 1, tl.int32), key < rows)
        if STEP < PASSES:
            later = _digit(moved, SHIFT + BITS, D)
            pair = place // B * (D // 2) + later // 2
            tl.atomic_add(following + pair, 1 << (later % 2 * 16), sem="relaxed")
        if first + G * S < B:
            at += G * S
            moved = _words(indices, source, at, count, rows, STEP == 1)


@triton.jit
def put_in_order(
    words,
    numbers,
    indices,
    counters,
    count,
    rows,
    programs,
    zeros,
    spare,
    FROM: tl.constexpr,
    TO: tl.constexpr,
    MARKS: tl.constexpr,
    BITS: tl.constexpr,
    PASSES: tl.constexpr,
    B: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    K: tl.constexpr,
):
    """Steps of a sort by the first programs of a launch: counts, then a move by each digit.

    The numbers are those to spare, tables of counts, and a mark for each row if it is asked for.
    """
    for step in tl.static_range(FROM, TO):
        if step == 0:
            _count(indices, numbers, programs, count, rows, zeros, B, 1 << BITS)
        else:
            _place(
                indices,
                words,
                numbers,
                programs,
                count,
                rows,
                zeros,
                spare,
                step,
                PASSES,
                BITS,
                MARKS and step == 1,
                B,
                G,
                S,
                K,
            )
        if step + 1 < TO:
            meet(counters, (step + 1) * programs)
