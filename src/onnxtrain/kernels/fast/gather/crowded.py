"""Sums of rows with more indices than slots: all indices are sorted, and long runs added up."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.counters import leave, meet
from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.launch import cdiv, multiprocessors, power
from onnxtrain.kernels.fast.common.scratch import MEMORY
from onnxtrain.kernels.fast.gather import runs
from onnxtrain.kernels.fast.gather.order import put_in_order
from onnxtrain.kernels.fast.gather.runs import add_runs, span_of
from onnxtrain.kernels.fast.gather.sorting import REGISTERS, WARPS, in_steps, plan_of

COLUMNS = {2: 1024, 4: 512}
"""Columns of a program, by the bytes of an element."""
TOGETHER = 4
"""Programs a multiprocessor."""
FRONT = tl.constexpr(16)
"""Numbers in front of the tallies; the first one says that a row has too few slots."""


@triton.jit
def _is_zero(number):
    """Whether a number is zero that was stored before this launch could begin."""
    return tl.load(number, cache_modifier=".cg") == 0


@triton.jit
def _clear_tallies(tallies, rows, B: tl.constexpr):
    """Zeros for the next call, when the programs before this launch have read the tallies."""
    wait()
    for first in range(tl.program_id(0) * B, rows, tl.num_programs(0) * B):
        at = first + tl.arange(0, B)
        tl.store(tallies + FRONT + at, tl.zeros((B,), tl.int32), at < rows)


@Early
@triton.jit(do_not_specialize=["count", "rows", "programs"])
def _long_runs(
    out,
    edges,
    numbers,
    values,
    words,
    indices,
    counters,
    tallies,
    count: tl.int32,
    columns,
    rows: tl.int32,
    programs: tl.int32,
    zeros,
    spare,
    FROM: tl.constexpr,
    TO: tl.constexpr,
    BITS: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    COMPARED: tl.constexpr,
    TABLES: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    F: tl.constexpr,
    J: tl.constexpr,
    C: tl.constexpr,
):
    """Steps of a sort, then the sums of long runs; nothing if there is no such run."""
    ENDS: tl.constexpr = TO == PASSES + 2
    if _is_zero(tallies):
        if ENDS:
            _clear_tallies(tallies, rows, 512)
        return
    SORTED: tl.constexpr = TO - 1 if ENDS else TO
    if tl.program_id(0) < programs:
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
            SORTED,
            False,
            BITS,
            PASSES,
            BLOCK,
            GROUPS,
            COMPARED,
            TABLES,
        )
        if FROM < SORTED and ENDS:
            meet(counters, SORTED * programs)
    elif FROM < SORTED and ENDS:
        meet(counters, SORTED * programs, False)
    if ENDS:
        strips = tl.cdiv(columns, C)
        pieces = (tl.cdiv(count, W) + tl.cdiv(count, R)) * strips
        for piece in range(tl.program_id(0), pieces, tl.num_programs(0)):
            add_runs(
                out,
                edges,
                numbers,
                values,
                words,
                count,
                columns,
                piece // strips,
                piece % strips,
                False,
                True,
                R,
                W,
                F,
                J,
                C,
            )
        _clear_tallies(tallies, rows, 512)
        if leave(counters):
            tl.store(tallies, 0)


def sum_crowded(indices: Tensor, values: Tensor, out: Tensor, tallies: Tensor) -> None:
    """Sums of rows that more than a chunk of indices name, if there are any; then clear tallies."""
    (rows, columns), total, device = out.shape, len(values), values.device
    width, span = min(power(columns), COLUMNS[values.dtype.itemsize]), span_of(total, rows)
    strips, spans = cdiv(columns, width), cdiv(total, span)
    plan = plan_of(total, rows, 0, device)
    room = plan.room(spans * strips)
    memory = MEMORY.of((room.words, room.numbers, spans * 2 * columns), device)
    pieces = strips * (spans + cdiv(total, runs.CHUNK))
    programs = max(plan.programs, min(pieces, TOGETHER * multiprocessors(device)))
    for begin, end in in_steps(plan.passes + 2):
        _long_runs[(programs,)](
            out,
            memory.edges,
            memory.numbers,
            values,
            memory.words,
            indices,
            memory.counters,
            tallies,
            total,
            columns,
            rows,
            plan.programs,
            room.zeros,
            room.spare,
            begin,
            end,
            *plan.cut,
            runs.CHUNK,
            span,
            min(power(spans), runs.FIRSTS),
            runs.JOINED,
            width,
            num_warps=WARPS,
            maxnreg=REGISTERS,
        )
