"""Sums of what the programs of a launch have left, in a fixed order, by a second launch.

A GPU of compute capability 9 has the second launch in place before the first one ends, so that only
the sum itself takes time.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.launch import cdiv, power
from onnxtrain.kernels.fast.common.scratch import Memory

FEW = 2048
"""Sums that are made in narrow strips, so that more programs make them."""
NARROW, WIDE = 16, 32
"""Columns of a strip."""
WARPS = 8
PER_THREAD = 64
"""Most numbers that a thread reads at once."""


MEMORY = Memory(lambda sizes, device: torch.empty(sizes, device=device), 1 << 21)
"""Of one size: so many shares in float32."""


@Early
@triton.jit
def _add_up(
    out,
    shares,
    count,
    columns,
    P: tl.constexpr,
    C: tl.constexpr,
):
    wait()
    column = tl.program_id(0) * C + tl.arange(0, C)
    fits = column < columns
    place = shares + tl.program_id(1) * count * columns + column[None, :]
    total = tl.zeros((P, C), tl.float32)
    for first in range(0, count, P):
        share = first + tl.arange(0, P)[:, None]
        mask = (share < count) & fits[None, :]
        # others wrote them while this program was in place
        total += tl.load(place + share * columns, mask, 0.0, cache_modifier=".cg")
    result = tl.sum(total, 0).to(out.dtype.element_ty)
    tl.store(out + tl.program_id(1) * columns + column, result, fits)


class Sums(NamedTuple):
    """How shares are added up: programs, and arguments of the kernel that are no tensors."""

    grid: tuple[int, int]
    values: tuple[Any, ...]

    def add(self, out: Tensor, shares: Tensor) -> None:
        """Write the sums of what the launch before this one has left, which announced this one."""
        _add_up[self.grid](out, shares, *self.values, num_warps=WARPS)


@functools.lru_cache(1024)
def sums_of(kinds: int, columns: int, count: int) -> Sums:
    """For so many shares of each kind, one behind the other."""
    strip = NARROW if kinds * columns <= FEW else WIDE
    together = min(power(count), 32 * WARPS * PER_THREAD // strip)
    return Sums((cdiv(columns, strip), kinds), (count, columns, together, strip))
