"""Values added at the places that indices along the last axis name: GatherElementsGrad.

A few values a row are combined where their places are equal, and written by the program that
clears the row; many are added one by one in float32, in any order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.launch import power

FEW = 64
CLEARED = {2: 8192, 4: 4096}
"""Elements that a program clears at once, by the bytes of one."""
WARPS = 4


@triton.jit
def _few(out, dy, indices, size, K, C: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for first in range(0, size, C):
        column = first + tl.arange(0, C)
        tl.store(out + row * size + column, tl.zeros((C,), out.dtype.element_ty), column < size)
    own = tl.arange(0, B)
    there = own < K
    place = tl.load(indices + row * K + own, there, 0)
    there = there & (place >= -size) & (place < size)
    place = tl.where(place < 0, place + size, place)
    place = tl.where(there, place, -1 - own)
    value = tl.load(dy + row * K + own, there, 0.0).to(tl.float32)
    # the transpose of a vector is the vector loaded once more
    equal = place[:, None] == tl.reshape(place, (1, B))
    total = tl.sum(tl.where(equal, tl.reshape(value, (1, B)), 0.0), 1)
    earlier = tl.sum((equal & (own[None, :] < own[:, None])).to(tl.int32), 1)
    tl.debug_barrier()
    tl.store(out + row * size + place, total.to(out.dtype.element_ty), there & (earlier == 0))


@triton.jit
def _many(out, dy, indices, size, K, count, B: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = at < count
    place = tl.load(indices + at, there, 0)
    there = there & (place >= -size) & (place < size)
    place = tl.where(place < 0, place + size, place)
    value = tl.load(dy + at, there, 0.0).to(tl.float32)
    tl.atomic_add(out + at // K * size + place, value, there, sem="relaxed")


def add_at_last(dy: Tensor, indices: Tensor, rows: int, size: int) -> Tensor:
    """dx[row, indices[row, k]] += dy[row, k] in dy's type; indices out of range add nothing."""
    picks = indices.shape[-1]
    if picks <= FEW:
        out = torch.empty((rows, size), dtype=dy.dtype, device=dy.device)
        cleared = min(CLEARED[dy.dtype.itemsize], power(size))
        _few[(rows,)](out, dy, indices, size, picks, cleared, power(picks), num_warps=WARPS)
        return out
    wide = torch.zeros((rows, size), dtype=torch.float32, device=dy.device)
    grid = (triton.cdiv(dy.numel(), 1024),)
    _many[grid](wide, dy, indices, size, picks, dy.numel(), 1024, num_warps=4)
    return wide.to(dy.dtype)
