"""A launch that puts indices in order, of which a few more programs clear rows of a result."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.counters import come, leave
from onnxtrain.kernels.fast.common.early import announce
from onnxtrain.kernels.fast.common.launch import cdiv, multiprocessors, power
from onnxtrain.kernels.fast.common.scratch import MEMORY
from onnxtrain.kernels.fast.gather.order import put_in_order

DIGIT = 6
"""At most so many bits of an index are looked at together."""
MOVED, COMPARED = 128, 64
"""Indices that a program moves at once, and those of them that are compared with each other."""
WARPS, REGISTERS = 4, 128
"""Warps of a program, and most registers of a thread, which more indices at once would exceed."""
TOGETHER = 2
"""So many programs a multiprocessor wait for each other at most; twice as many find room there."""
CLEARERS, CLEARED = 1, 16384
"""Programs a multiprocessor that clear rows beside the others, and elements of one at once."""
SHARE, SHORT, MEANWHILE = 0.5, 1 << 15, 20 << 20
"""Part of the rows that are cleared beside a sort of at most so many indices, a short one; and most
elements, for which there is time. More programs clear the others, beside the sums."""


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
def zero_rows(cleared, row, wanted, columns, column, R: tl.constexpr, C: tl.constexpr):
    """Zeros in some columns of the wanted ones among these rows."""
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    mask = wanted[:, None] & (column < columns)[None, :]
    tl.store(cleared + at, tl.zeros((R, C), cleared.dtype.element_ty), mask)


@triton.jit
def _known(counters, programs, rows):
    """Of how many rows it is known whether they are indices: none until all have moved once.

    One thread asks for all of them: each for itself might see another count, and they would part.
    """
    known = 0
    if tl.atomic_add(counters, 0, sem="acquire") >= 2 * programs:
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
    FROM: tl.constexpr,
    TO: tl.constexpr,
    CLEARS: tl.constexpr,
    BITS: tl.constexpr,
    PASSES: tl.constexpr,
    B: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Steps of a sort; programs beyond clear rows."""
    # all programs have begun when what follows takes its place, so it does not keep one from that
    announce()
    sorters = programs if FROM < TO else 0
    if tl.program_id(0) < sorters:
        put_in_order(
            words,
            numbers,
            indices,
            counters,
            count,
            rows,
            programs,
            zeros,
            spare,
            FROM,
            TO,
            CLEARS,
            BITS,
            PASSES,
            B,
            G,
            S,
            K,
        )
        if CLEARS and TO == 2 and FROM == 0:
            come(counters)
    elif CLEARS:
        marks = numbers + spare + (PASSES - 1) * programs * ((1 << BITS) // 2)
        known: tl.constexpr = FROM == TO
        _clear(cleared, marks, counters, sorters, programs, rows, columns, blocks, known, R, C)
    if FROM + 1 < TO:
        leave(counters)


class Room(NamedTuple):
    """What a sort needs.

    Attributes:
        words: How many words.
        numbers: How many numbers; those that others use come first, then tables and marks.
        zeros: So many of them get zero.
        spare: So many are for others.
        marks: Where marks of rows begin.
    """

    words: int
    numbers: int
    zeros: int
    spare: int
    marks: int


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

    @property
    def cut(self) -> tuple[int, ...]:
        """How a kernel cuts indices: bits and digits, those of a program, groups, and blocks."""
        block = self.block, MOVED // COMPARED, COMPARED
        return self.digit, self.passes, *block, power(self.programs)

    def room(self, spare: int, marked: int = 0) -> Room:
        """For a sort with so many numbers for others, and marks of so many rows."""
        # whole addresses of 64 bytes
        spare, marked = (cdiv(count, 16) * 16 for count in (spare, marked))
        marks = spare + (self.passes - 1) * self.table
        zeros = marks + marked
        return Room(2 * self.programs * self.block, zeros + self.table, zeros, spare, marks)


@functools.lru_cache(maxsize=1024)
def plan_of(total: int, rows: int, columns: int, device: torch.device) -> Plan:
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
    most = MEANWHILE // (cleared * columns) if columns else 0
    blocks = min(int(cdiv(rows, cleared) * SHARE), most) if total <= SHORT else 0
    clearers = min(blocks, CLEARERS * processors)
    table = programs << (digit - 1)
    return Plan(digit, passes, block, programs, table, clearers, blocks, cleared, width)


def in_order(indices: Tensor, rows: int, cleared: Tensor | None, spare: int, edges: int) -> Sorted:
    """Sort indices modulo the rows; rows of a result that none of them has are cleared."""
    device, total = indices.device, indices.numel()
    columns = 0 if cleared is None else cleared.shape[1]
    plan = plan_of(total, rows, columns, device)
    room = plan.room(spare, rows if columns else 0)
    memory = MEMORY.of((room.words, room.numbers, edges), device)
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
            room.zeros,
            room.spare,
            plan.blocks,
            begin,
            end,
            columns > 0,
            *plan.cut,
            plan.cleared,
            plan.width,
            num_warps=WARPS,
            maxnreg=REGISTERS,
        )
    uncleared = max(0, rows - plan.blocks * plan.cleared) if columns else 0
    return Sorted(memory.words, memory.numbers, memory.edges, room.marks, uncleared)


def _launches(plan: Plan) -> list[tuple[int, int, int]]:
    """From which step to which one each launch goes, and its programs."""
    if not interpreted():
        return [(0, plan.passes + 1, plan.programs + plan.clearers)]
    steps = [(*ends, plan.programs) for ends in in_steps(plan.passes + 1)]
    return [*steps, (0, 0, plan.clearers)] if plan.clearers else steps


def in_steps(count: int) -> list[tuple[int, int]]:
    """From which of so many steps to which one each launch goes: one does them all.

    An interpreter runs one program after the other, and none could wait for the next.
    """
    return [(step, step + 1) for step in range(count)] if interpreted() else [(0, count)]
