"""Sums over all programs of a launch, in a fixed order, by those of them that finish last."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.counters import ZEROS
from onnxtrain.kernels.fast.launch import cdiv, multiprocessors

STRIP = tl.constexpr(32)
"""Columns that one program adds up at once."""


class Shares(NamedTuple):
    """Memory for the shares of programs, and how they are added up.

    Attributes:
        shares: The shares of each kind in float32, a row for each program.
        counters: How many programs have come so far; zero before and after.
        helpers: How many programs add up. They wait for the others, and so they are few enough for
            the others to find room.
    """

    shares: Tensor
    counters: Tensor
    helpers: int

    @classmethod
    def of(cls, out: Tensor, count: int, programs: int, strip: int = STRIP.value) -> Shares:
        """Memory for so many shares of every row of a result, in a launch of so many programs."""
        device, columns = out.device, out.shape[-1]
        kinds = out.numel() // columns
        # an interpreter runs one program after the other, and none could wait for the next
        most = 1 if interpreted() else max(1, multiprocessors(device) // 2)
        return cls(
            torch.empty((kinds, count, columns), dtype=torch.float32, device=device),
            ZEROS.of(device),
            min(most, programs, kinds * cdiv(columns, strip)),
        )


@triton.jit
def add_shares(
    out,
    shares,
    counters,
    count,
    pitch,
    columns,
    kinds,
    helpers,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """Σ of shares that all programs have stored; the last ones take a part of the columns each.

    A share begins so many elements behind the one before it; P of them are read at once.
    """
    tl.debug_barrier()
    programs = tl.num_programs(0) * tl.num_programs(1)
    helper = tl.atomic_add(counters, 1, sem="acq_rel") - (programs - helpers)
    if helper >= 0:
        # a load that does not keep the others from counting
        while tl.load(counters, volatile=True) < programs:
            pass
        tl.atomic_add(counters, 0, sem="acq_rel")
        tl.debug_barrier()
        across = tl.cdiv(columns, C)
        for number in range(helper, across * kinds, helpers):
            kind = number // across
            column = number % across * C + tl.arange(0, C)
            first = shares + kind * count * pitch
            _add_strip(out + kind * columns, first, count, pitch, columns, column, P, C)
        tl.debug_barrier()
        if tl.atomic_add(counters + 1, 1, sem="acq_rel") == helpers - 1:
            tl.store(counters, 0)
            tl.store(counters + 1, 0)


@triton.jit
def _add_strip(out, shares, count, pitch, columns, column, P: tl.constexpr, C: tl.constexpr):
    total = tl.zeros((P, C), tl.float32)
    fits = column < columns
    for first in range(0, count, P):
        share = first + tl.arange(0, P)
        mask = (share < count)[:, None] & fits[None, :]
        at = share[:, None] * pitch + column[None, :]
        # other multiprocessors wrote them, so what a nearer cache has may be old
        total += tl.load(shares + at, mask, 0.0, cache_modifier=".cg")
    tl.store(out + column, tl.sum(total, 0).to(out.dtype.element_ty), fits)
