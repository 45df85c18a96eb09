"""Indices in ascending order, equal ones as they came, by one launch whose programs wait.

Digit by digit from the lowest, each program counts the digits of its block. When all have counted,
it knows where its own indices go. A few programs more clear rows of a result meanwhile.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.counters import come, leave, meet
from onnxtrain.kernels.fast.launch import cdiv, multiprocessors, power
from onnxtrain.kernels.fast.scratch import MEMORY
from onnxtrain.kernels.fast.shares import announce, overlaps

DIGIT = 6
"""At most so many bits of an index are looked at together."""
MOVED, COMPARED = 128, 64
"""Indices that a program moves at once, and those of them that are compared with each other."""
WARPS, REGISTERS = 4, 128
"""Warps of a program, and most registers of a thread, which more indices at once would exceed."""
HELD, HALF = tl.constexpr(128), tl.constexpr(1 << 15)
"""Most blocks whose counts are added up at once, and indices whose count fits into half a word."""
TOGETHER = 2
"""So many programs a multiprocessor wait for each other at most; twice as many find room there."""
CLEARERS, CLEARED = 1, 16384
"""Programs a multiprocessor that clear rows beside the others, and elements of one at once."""
SHARE, SHORT = 0.5, 1 << 15
"""Part of the rows that are cleared beside a sort of at most so many indices, a short one."""
END = tl.constexpr(0x7FFFFFFF)
"""Stands for the indices that the last block lacks: behind all others in every digit."""


class Sorted(NamedTuple):
    """What a sort leaves on the device.

    Attributes:
        words: An index in the high and its position in the low half of each word, ascending.
        numbers: As many zeros as were asked for, then other numbers.
        edges: Memory for so many float32 numbers as were asked for.
        marks: Where among the numbers it begins that each row has a 1 if it is an index.
        uncleared: So many rows, the first ones, still have to be cleared.
    """

    words: Tensor
    numbers: Tensor
    edges: Tensor
    marks: int
    uncleared: int


@triton.jit
def _wrapped(index, rows):
    """An index in [0, rows), negative ones from the end, as the remainder of a division."""
    rest = index.to(tl.int32) % rows
    return tl.where(rest < 0, rest + rows, rest)


@triton.jit
def _words(indices, source, at, count, rows, FIRST: tl.constexpr):
    """Indices and their positions, in the high and the low half of a word."""
    if FIRST:
        there = at < count
        key = tl.where(there, _wrapped(tl.load(indices + at, there, 0), rows), END)
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
def zero_rows(cleared, row, wanted, columns, column, R: tl.constexpr, C: tl.constexpr):
    """Zeros in some columns of the wanted ones among these rows."""
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    mask = wanted[:, None] & (column < columns)[None, :]
    tl.store(cleared + at, tl.zeros((R, C), cleared.dtype.element_ty), mask)


@triton.jit
def _known(counters, programs, rows):
    """Of how many rows it is known whether they are indices: none until all have moved once."""
    known = 0
    if tl.load(counters, volatile=True) >= 2 * programs:
        tl.atomic_add(counters, 0, sem="acq_rel")
        tl.debug_barrier()
        known = rows
    return known


@triton.jit
def _clear(
    cleared,
    marks,
    counters,
    sorters,
    programs,
    rows,
    columns,
    blocks,
    KNOWN: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Zeros in rows without an index; before it is known which these are, in all rows.

    They are taken from the end, where rows have fewer indices in most models.
    """
    known = rows if KNOWN else 0
    for number in range(tl.program_id(0) - sorters, blocks, tl.num_programs(0) - sorters):
        if known == 0:
            known = _known(counters, programs, rows)
        row = rows - number * R - 1 - tl.arange(0, R)
        marked = tl.load(marks + row, (row >= 0) & (row < known), 0, cache_modifier=".cg")
        wanted = (row >= 0) & (marked == 0)
        for first in range(0, columns, C):
            zero_rows(cleared, row, wanted, columns, first + tl.arange(0, C), R, C)


@Compiled
@triton.jit(do_not_specialize=["count", "rows", "programs", "blocks"])
def _sort(
    words,
    numbers,
    indices,
    counters,
    cleared,
    count: tl.int32,
    rows: tl.int32,
    columns,
    programs: tl.int32,
    zeros,
    spare,
    blocks: tl.int32,
    BITS: tl.constexpr,
    PASSES: tl.constexpr,
    FROM: tl.constexpr,
    TO: tl.constexpr,
    CLEARS: tl.constexpr,
    OVERLAPS: tl.constexpr,
    B: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Steps of a sort: counts, then a move by each digit; programs beyond clear rows.

    The numbers are those to spare, tables of counts, and a mark for each row.
    """
    # all programs have begun when what follows takes its place, so it does not keep one from that
    announce(OVERLAPS)
    sorters = programs if FROM < TO else 0
    if tl.program_id(0) < sorters:
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
                    CLEARS and step == 1,
                    B,
                    G,
                    S,
                    K,
                )
            if step + 1 < TO:
                meet(counters, (step + 1) * programs)
            elif CLEARS and TO == 2 and FROM == 0:
                come(counters)
    elif CLEARS:
        marks = numbers + spare + (PASSES - 1) * programs * ((1 << BITS) // 2)
        known: tl.constexpr = FROM == TO
        _clear(cleared, marks, counters, sorters, programs, rows, columns, blocks, known, R, C)
    if FROM + 1 < TO:
        leave(counters)


class Plan(NamedTuple):
    """Sizes of a launch: bits of a digit, digits, indices of a program, programs, tables."""

    digit: int
    passes: int
    block: int
    programs: int
    table: int
    clearers: int
    blocks: int
    cleared: int
    width: int


@functools.lru_cache(maxsize=1024)
def _plan(total: int, rows: int, columns: int, device: torch.device) -> Plan:
    """How so many indices are sorted, and rows with columns cleared."""
    bits = max(1, (rows - 1).bit_length())
    passes = cdiv(bits, DIGIT)
    # a histogram has a bin for each thread of a warp at least
    digit = max(5, cdiv(bits, passes))
    processors = multiprocessors(device)
    block = max(MOVED, power(cdiv(total, TOGETHER * processors)))
    programs = cdiv(total, block)
    width = min(power(columns), 1024)
    cleared = max(1, CLEARED // width)
    blocks = int(cdiv(rows, cleared) * SHARE) if columns and total <= SHORT else 0
    clearers = min(blocks, CLEARERS * processors)
    table = programs << (digit - 1)
    return Plan(digit, passes, block, programs, table, clearers, blocks, cleared, width)


def in_order(indices: Tensor, rows: int, cleared: Tensor | None, spare: int, edges: int) -> Sorted:
    """Sort indices modulo the rows; rows of a result that none of them has are cleared."""
    device, total = indices.device, indices.numel()
    columns = 0 if cleared is None else cleared.shape[1]
    plan = _plan(total, rows, columns, device)
    # whole addresses of 64 bytes
    spare, marked = cdiv(spare, 16) * 16, cdiv(rows, 16) * 16 if columns else 0
    zeros = spare + (plan.passes - 1) * plan.table + marked
    sizes = 2 * plan.programs * plan.block, zeros + plan.table, edges
    memory = MEMORY.of(sizes, device)
    for begin, end, programs in _launches(plan):
        _sort[(programs,)](
            memory.words,
            memory.numbers,
            indices,
            memory.counters,
            memory.numbers if cleared is None else cleared,
            total,
            rows,
            columns,
            plan.programs,
            zeros,
            spare,
            plan.blocks,
            plan.digit,
            plan.passes,
            begin,
            end,
            columns > 0,
            overlaps(device),
            plan.block,
            MOVED // COMPARED,
            COMPARED,
            power(plan.programs),
            plan.cleared,
            plan.width,
            num_warps=WARPS,
            maxnreg=REGISTERS,
        )
    uncleared = max(0, rows - plan.blocks * plan.cleared) if columns else 0
    return Sorted(memory.words, memory.numbers, memory.edges, zeros - marked, uncleared)


def _launches(plan: Plan) -> list[tuple[int, int, int]]:
    """From which step to which one each launch goes, and its programs."""
    if not interpreted():
        return [(0, plan.passes + 1, plan.programs + plan.clearers)]
    # one program runs after the other there, and none could wait for the next
    steps = [(step, step + 1, plan.programs) for step in range(plan.passes + 1)]
    return [*steps, (0, 0, plan.clearers)] if plan.clearers else steps
