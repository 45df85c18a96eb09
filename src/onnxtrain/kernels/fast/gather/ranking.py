"""A few indices in ascending order: each is compared with all others, which no program waits for.

Beside that, other programs of the launch clear the result, of which few rows get a sum afterwards.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.early import announce
from onnxtrain.kernels.fast.common.launch import cdiv
from onnxtrain.kernels.fast.common.scratch import MEMORY
from onnxtrain.kernels.fast.gather.order import END, wrapped
from onnxtrain.kernels.fast.gather.sorting import Sorted

MOST = 2048
"""Indices of which each can be compared with all others."""
RANKED, COMPARED, WARPS = 8, 1024, 4
"""Indices of a program, those with which it compares them at once, and its warps."""
CLEARED = 8192
"""Elements that a program clears."""


@triton.jit
def _numbered(indices, at, count, rows):
    """Rows that indices mean, and numbers in whose order they belong, equal ones as they came."""
    row = wrapped(tl.load(indices + at, at < count, 0), rows)
    return row, tl.where(at < count, row * count + at, END)


@Compiled
@triton.jit(do_not_specialize=["count", "rows", "zeros"])
def _rank(
    words,
    numbers,
    indices,
    cleared,
    count: tl.int32,
    rows: tl.int32,
    zeros: tl.int32,
    size,
    S: tl.constexpr,
    B: tl.constexpr,
    Z: tl.constexpr,
):
    """Indices and positions in the halves of words, in order; programs beyond clear elements."""
    announce()
    own, sorters = tl.program_id(0), tl.cdiv(count, S)
    if own >= sorters:
        element = (own - sorters).to(tl.int64) * Z + tl.arange(0, Z)
        tl.store(cleared + element, tl.zeros((Z,), cleared.dtype.element_ty), element < size)
        return
    at = own * S + tl.arange(0, S)
    row, number = _numbered(indices, at, count, rows)
    before = tl.zeros((S, B), tl.int32)
    for first in range(0, count, B):
        _, other = _numbered(indices, first + tl.arange(0, B), count, rows)
        before += (other[None, :] < number[:, None]).to(tl.int32)
    tl.store(words + tl.sum(before, 1), (row.to(tl.int64) << 32) | at, at < count)
    for first in range(own * B, zeros, sorters * B):
        zero = first + tl.arange(0, B)
        tl.store(numbers + zero, tl.zeros((B,), tl.int32), zero < zeros)


def takes(count: int, rows: int) -> bool:
    """Whether so many indices of so many rows are few enough."""
    return count <= MOST and count * rows <= END.value


def in_order(indices: Tensor, rows: int, cleared: Tensor | None, spare: int, edges: int) -> Sorted:
    """Sort indices modulo the rows, with so many zeros and memory for edges; clear a result."""
    device, total = indices.device, indices.numel()
    memory = MEMORY.of((total, spare, edges), device)
    size = 0 if cleared is None else cleared.numel()
    _rank[(cdiv(total, RANKED) + cdiv(size, CLEARED),)](
        memory.words,
        memory.numbers,
        indices,
        memory.numbers if cleared is None else cleared,
        total,
        rows,
        spare,
        size,
        RANKED,
        COMPARED,
        CLEARED,
        num_warps=WARPS,
    )
    return Sorted(memory.words, memory.numbers, memory.edges, 0, 0)
