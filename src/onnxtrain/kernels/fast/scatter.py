"""Values added at the places that indices along the last axis name: GatherElementsGrad.

A few values a row are combined where their places are equal, and written; many are added one by
one in float32, in any order. Memory is cleared before, at the speed of a plain fill.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv, power

FEW = 64
FEW_WARPS = 1
MANY, MANY_WARPS = 1024, 4
"""Values that a program adds one by one, and its warps."""


@Compiled
@triton.jit
def _few(out, dy, indices, size, K, KIND: tl.constexpr, B: tl.constexpr):
    """Each value writes the sum of all values at its place: equal ones write the same sum."""
    row = tl.program_id(0).to(tl.int64)
    own = tl.arange(0, B)
    place = _place(indices + row * K, own, size, K, KIND)
    value = tl.load(dy + row * K + own, own < K, 0.0).to(tl.float32)
    # a thread has its own values and meets all others, which is a sum without an exchange
    equal = place[:, None] == place[None, :]
    total = tl.sum(tl.where(equal, value[:, None], 0.0), 0)
    tl.store(out + row * size + place, total.to(out.dtype.element_ty), place >= 0)


@triton.jit
def _place(indices, at, size, K, KIND: tl.constexpr):
    """Where an index points, or -1 if that is outside."""
    index = tl.load(indices + at, at < K, size)
    inside = (index >= -size) & (index < size)
    return tl.where(inside, tl.where(index < 0, index + size, index), -1).to(KIND)


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


def _zeros(rows: int, size: int, like: Tensor) -> Tensor:
    """A matrix of zeros; torch fills memory faster as numbers of 32 bits than as those of 16."""
    count, of = rows * size, like.dtype.itemsize
    words = torch.zeros(cdiv(count * of, 4), dtype=torch.float32, device=like.device)
    return words.view(like.dtype)[:count].view(rows, size)


def add_at_last(dy: Tensor, indices: Tensor, rows: int, size: int) -> Tensor:
    """dx[row, indices[row, k]] += dy[row, k] in dy's type; indices out of range add nothing."""
    picks = indices.shape[-1]
    if picks <= FEW:
        out = _zeros(rows, size, dy)
        kind = tl.int32 if size < 1 << 31 else tl.int64
        _few[(rows,)](out, dy, indices, size, picks, kind, power(picks), num_warps=FEW_WARPS)
        return out
    wide = torch.zeros((rows, size), dtype=torch.float32, device=dy.device)
    grid = (cdiv(dy.numel(), MANY),)
    _many[grid](wide, dy, indices, size, picks, dy.numel(), MANY, num_warps=MANY_WARPS)
    return wide.to(dy.dtype)
