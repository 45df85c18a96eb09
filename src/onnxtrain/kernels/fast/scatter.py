"""Values added at the places that indices along the last axis name: GatherElementsGrad.

A few values a row are combined where their places are equal, and written to a part of it that the
same program has cleared. More of them are added in shared memory, those of a part of a row by each
program, as whole numbers: their sums are the same in any order, and rounded once. Many values of
long rows are added one by one in float32 to cleared memory, in any order, unless they must repeat.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv, power
from onnxtrain.kernels.fast.common.shared import (
    MOST_WORDS,
    add,
    add_some,
    fill,
    raise_to,
    read,
    reserve,
    word,
)
from onnxtrain.kernels.fast.common.whole import bits_of, exponent, joined, split

PART = MOST_WORDS // 3
"""Places of a row whose sums a program keeps in shared memory."""
FEW, FEW_IN_LONG_ROWS = 64, {2: 256, 4: 128}
"""So many values of a row are few, in rows of one part and in longer ones by their bytes."""
CLEARED, PIECES = 4096, 2
"""Bytes of a row that a warp clears and then writes a few values to, and how often it does that."""
MOST_PICKS, MOST_PARTS = 1 << 14, 64
"""So many values fit in a program's registers, and so often are they read for parts of a row."""
MANY, MANY_WARPS = 1024, 4
"""Values that a program adds one by one, and its warps."""


@Compiled
@triton.jit
def _few(
    out,
    dy,
    indices,
    size,
    K,
    KIND: tl.constexpr,
    N: tl.constexpr,
    B: tl.constexpr,
    S: tl.constexpr,
):
    """Zeros in pieces of a row; then each value there writes the sum of all values at its place.

    Equal ones write the same sum.
    """
    parts = tl.cdiv(size, N * S)
    row, part = (tl.program_id(0) // parts).to(tl.int64), (tl.program_id(0) % parts).to(KIND)
    own = tl.arange(0, B)
    place = _place(indices + row * K, own, size, K, KIND)
    value = tl.load(dy + row * K + own, own < K, 0.0).to(tl.float32)
    # a thread has its own values and meets all others, which is a sum without an exchange
    equal = place[:, None] == place[None, :]
    total = tl.sum(tl.where(equal, value[:, None], 0.0), 0).to(out.dtype.element_ty)
    start = out + row * size
    for n in tl.static_range(N):
        first = (part * N + n) * S
        at = first + tl.arange(0, S)
        tl.store(start + at, tl.zeros((S,), out.dtype.element_ty), at < size)
        tl.debug_barrier()
        tl.store(start + place, total, (place >= first) & (place < first + S))


@triton.jit
def _place(indices, at, size, K, KIND: tl.constexpr):
    """Where an index points, or -1 if that is outside."""
    index = tl.load(indices + at, at < K, size)
    inside = (index >= -size) & (index < size)
    return tl.where(inside, tl.where(index < 0, index + size, index), -1).to(KIND)


@Compiled
@triton.jit
def _parts(out, dy, indices, words, size, K, B: tl.constexpr, S: tl.constexpr, BITS: tl.constexpr):
    """Sums at S places of a row, as whole numbers in shared memory."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * S
    tops = reserve(words, 3 * S)
    highs, lows = word(tops, S), word(tops, 2 * S)
    fill(tops, S, BITS << 23)
    fill(highs, 2 * S, 0)
    value, place = _here(dy + row * K, indices + row * K, first, size, K, B, S)
    tl.debug_barrier()
    raise_to(word(tops, place), exponent(value))
    tl.debug_barrier()
    high, low = split(value, read(word(tops, place)), BITS)
    add(word(highs, place), high)
    add_some(word(lows, place), low)
    tl.debug_barrier()
    # more than four neighbours a thread would meet in the same banks of memory
    at = tl.max_contiguous(tl.arange(0, S), 4)
    total = joined(read(word(highs, at)), read(word(lows, at)), read(word(tops, at)), BITS)
    tl.store(out + row * size + first + at, total.to(out.dtype.element_ty), first + at < size)


@triton.jit
def _here(dy, indices, first, size, K, B: tl.constexpr, S: tl.constexpr):
    """Values with their places in a part of a row; others are zeros, at places that differ."""
    # two neighbours a thread, for which indices are 16 bytes
    own = tl.max_contiguous(tl.arange(0, B), 2)
    index = tl.load(indices + own, own < K, size)
    value = tl.load(dy + own, own < K, 0.0).to(tl.float32)
    narrow = index.to(tl.int32)
    place = tl.where(narrow < 0, narrow + size, narrow) - first
    inside = place.to(tl.uint32, bitcast=True) < tl.minimum(S, size - first)
    here = (narrow == index) & inside
    return tl.where(here, value, 0.0), tl.where(here, place, own % S)


@Compiled
@triton.jit
def _many(out, dy, indices, size, K, count, B: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = at < count
    place = tl.load(indices + at, there, 0)
    there = there & (place >= -size) & (place < size)
    place = tl.where(place < 0, place + size, place)
    value = tl.load(dy + at, there, 0.0).to(tl.float32)
    tl.atomic_add(out + at // K * size + place, value, there, sem="relaxed")


def repeats(picks: int, size: int) -> bool:
    """Whether sums of so many values a row can be made the same each time."""
    few = FEW if size <= PART else min(FEW_IN_LONG_ROWS.values())
    return picks <= few or (picks <= MOST_PICKS and size <= MOST_PARTS * PART)


def add_at_last(
    dy: Tensor, indices: Tensor, rows: int, size: int, *, repeatable: bool = False
) -> Tensor:
    """dx[row, indices[row, k]] += dy[row, k] in dy's type; indices out of range add nothing."""
    picks = indices.shape[-1]
    long = size > PART
    if picks <= (FEW_IN_LONG_ROWS[dy.dtype.itemsize] if long else FEW):
        return _by_pairs(dy, indices, rows, size)
    # values of 16 bits need a wider copy of all sums to be added one by one
    narrow = dy.dtype.itemsize == 2 and 8 * picks <= size
    if repeats(picks, size) and (repeatable or narrow or not long):
        return _in_parts(dy, indices, rows, size)
    wide = torch.zeros((rows, size), dtype=torch.float32, device=dy.device)
    grid = (cdiv(dy.numel(), MANY),)
    _many[grid](wide, dy, indices, size, picks, dy.numel(), MANY, num_warps=MANY_WARPS)
    return wide.to(dy.dtype)


def _by_pairs(dy: Tensor, indices: Tensor, rows: int, size: int) -> Tensor:
    picks, block = indices.shape[-1], power(indices.shape[-1])
    out = torch.empty((rows, size), dtype=dy.dtype, device=dy.device)
    count = max(1, block * block >> 13)
    part = min(count * CLEARED // dy.dtype.itemsize, max(16, power(size)))
    pieces = min(PIECES, cdiv(size, part))
    kind, grid = tl.int32 if size < 1 << 30 else tl.int64, (rows * cdiv(size, pieces * part),)
    _few[grid](out, dy, indices, size, picks, kind, pieces, block, part, num_warps=count)
    return out


def _in_parts(dy: Tensor, indices: Tensor, rows: int, size: int) -> Tensor:
    picks, part = indices.shape[-1], min(PART, max(32, power(size)))
    count = max(1, min(32, max(part // 512, power(picks) // 128)))
    block = max(power(picks), 32 * count)
    out = torch.empty((rows, size), dtype=dy.dtype, device=dy.device)
    words = torch.empty(3 * part, dtype=torch.int32) if interpreted() else out
    grid, bits = (rows, cdiv(size, part)), bits_of(block)
    _parts[grid](out, dy, indices, words, size, picks, block, part, bits, num_warps=count)
    return out
