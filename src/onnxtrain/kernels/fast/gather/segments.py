"""Sums of rows that have the same index, always in the same order: the gradient of Gather.

The rows are taken in the order of their indices, and runs of equal ones are added up. Where rows
had few indices each when one looked, they wait in slots instead (`slots.py`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.launch import cdiv, power
from onnxtrain.kernels.fast.gather import ranking, runs, slots
from onnxtrain.kernels.fast.gather.runs import add_runs, span_of
from onnxtrain.kernels.fast.gather.sorting import Sorted, in_order, zero_rows

COLUMNS, WARPS = {2: 1024, 4: 256}, {2: 4, 4: 2}
"""Columns and warps of a program, by the bytes of an element."""
CLEARED = 16
"""Rows that a program clears."""
COUNTED = 1 << 18
"""Up to so many indices are put in order by counting."""


@Early
@triton.jit(do_not_specialize=["count", "rows", "marks", "blocks", "both"])
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
    both: tl.int32,
    ADDED: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    F: tl.constexpr,
    J: tl.constexpr,
    C: tl.constexpr,
    Z: tl.constexpr,
):
    """Runs that begin in a chunk; the first programs take those that a span begins within.

    Every other one of the first clears rows, until there are no more of ``both`` kinds.
    """
    wait()
    strips = tl.cdiv(columns, C)
    strip = tl.program_id(0) % strips
    column = strip * C + tl.arange(0, C)
    own = tl.program_id(0) // strips
    in_turn = own < 2 * both
    clears = tl.where(in_turn, own % 2 == 0, both < blocks)
    own = tl.where(in_turn, own // 2, own - both)
    if clears:
        row = own * Z + tl.arange(0, Z)
        marked = tl.load(numbers + marks + row, row < rows, 1)
        zero_rows(out, row, marked == 0, columns, column, Z, C)
        return
    add_runs(
        out,
        edges,
        numbers,
        values,
        words,
        count,
        columns,
        own,
        strip,
        ADDED,
        False,
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
    out = values.new_empty((count, values.shape[1])) if base is None else base
    if base is None and slots.suffice(indices, count):
        slots.sum_rows(indices, values, out)
    else:
        _sum_sorted(indices, values, out, base is not None)
    return out


def _sum_sorted(indices: Tensor, values: Tensor, out: Tensor, added: bool) -> None:
    (total, columns), count = values.shape, len(out)
    size = values.dtype.itemsize
    width = min(power(columns), COLUMNS[size])
    span = span_of(total, count)
    strips, spans = cdiv(columns, width), cdiv(total, span)
    cleared = None if added else out
    found = _in_order(indices, count, cleared, spans * strips, spans * 2 * columns)
    # half as many where registers hold what is there as well
    chunk = runs.CHUNK // 2 if added else runs.CHUNK
    programs, blocks = spans + cdiv(total, chunk), cdiv(found.uncleared, CLEARED)
    _sums[(strips * (programs + blocks),)](
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
        min(programs, blocks),
        added,
        chunk,
        span,
        min(power(spans), runs.FIRSTS),
        runs.JOINED,
        width,
        CLEARED,
        num_warps=WARPS[size],
    )
    if not ranking.takes(total, count):
        slots.look(indices, found.words, count)


def _in_order(indices: Tensor, rows: int, cleared: Tensor | None, spare: int, edges: int) -> Sorted:
    """Indices in ascending order, with zeros to spare and memory for edges."""
    if ranking.takes(indices.numel(), rows):
        return ranking.in_order(indices, rows, cleared, spare, edges)
    if indices.numel() <= COUNTED:
        return in_order(indices, rows, cleared, spare, edges)
    if cleared is not None:
        cleared.zero_()
    device = indices.device
    ascending, positions = indices.remainder(rows).long().sort(stable=True)
    zeros = torch.zeros(spare, dtype=torch.int32, device=device)
    memory = torch.empty(edges, dtype=torch.float32, device=device)
    return Sorted((ascending << 32) | positions, zeros, memory, 0, 0)
