"""Dropout in one pass: the mask is drawn, packed if asked for, and applied where it is drawn.

A mask is that of Philox 4x32-10 with the seed as its key and the position as its counter. Without
a seed, one is drawn on the device from the session's generator, so a recorded step draws anew.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
WARPS = 4
TWO_TO_MINUS_32 = tl.constexpr(2.0**-32)
TWO_TO_MINUS_33 = tl.constexpr(2.0**-33)


@triton.jit
def _kept(seed, first, limit, B: tl.constexpr):
    """Which of B elements are kept: four of them by each number of the counter."""
    counter = first // 4 + tl.arange(0, B // 4)
    low, high = (counter & 0xFFFFFFFF).to(tl.uint32), (counter >> 32).to(tl.uint32)
    zero = low * 0
    a, b, c, d = tl.philox(seed, zero, zero, low, high)
    word = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (B,))
    return word.to(tl.float32) * TWO_TO_MINUS_32 + TWO_TO_MINUS_33 < limit


@triton.jit(do_not_specialize=["seed"])
def _drop(
    y,
    mask,
    x,
    bias,
    residual,
    seeds,
    seed,
    count,
    columns,
    limit,
    scale,
    DRAWN: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PACKED: tl.constexpr,
    B: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * B
    lane = tl.arange(0, B)
    there = lane < count - first
    if DRAWN:
        seed = tl.load(seeds)
    kept = _kept(seed, first, limit, B)
    value = tl.load(x + first + lane, there, 0.0).to(tl.float32)
    if BIAS:
        column = ((first % columns).to(tl.int32) + lane) % columns
        value += tl.load(bias + column, there, 0.0).to(tl.float32)
    value = tl.where(kept, value * scale, 0.0)
    if RESIDUAL:
        value += tl.load(residual + first + lane, there, 0.0).to(tl.float32)
    tl.store(y + first + lane, value.to(y.dtype.element_ty), there)
    if PACKED:
        bits = (kept & there).to(tl.int32) << lane % 8
        octet = tl.sum(tl.reshape(bits, (B // 8, 8)), 1)
        place = first // 8 + tl.arange(0, B // 8)
        # the last word is whole, whatever the last element
        tl.store(mask + place, octet.to(tl.uint8), place < (count + 31) // 32 * 4)
    else:
        tl.store(mask + first + lane, kept.to(tl.uint8), there)


@triton.jit
def _grad(dx, dy, mask, count, scale, PACKED: tl.constexpr, B: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * B
    lane = tl.arange(0, B)
    there = lane < count - first
    value = tl.load(dy + first + lane, there, 0.0).to(tl.float32)
    if PACKED:
        octet = tl.load(mask + first // 8 + lane // 8, there, 0).to(tl.int32)
        kept = (octet >> lane % 8) & 1
    else:
        kept = tl.load(mask + first + lane, there, 0).to(tl.int32)
    value = tl.where(kept != 0, value * scale, 0.0)
    tl.store(dx + first + lane, value.to(dx.dtype.element_ty), there)


def takes(seed: int | None) -> bool:
    """Whether a seed is one that goes to the device as it is."""
    return seed is None or 0 <= seed < 1 << 63


def drop(
    x: Tensor,
    rate: float,
    seed: int | None,
    rng: torch.Generator | None,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    packed: bool = False,
) -> tuple[Tensor, Tensor]:
    """y = (x + bias) / (1 - rate) + residual where the mask is true, else the residual; the mask.

    The bias is as long as the last axis of x.
    """
    y = torch.empty_like(x)
    size = 4 * triton.cdiv(x.numel(), 32) if packed else x.numel()
    mask = torch.empty(size, dtype=torch.uint8, device=x.device)
    drawn = mask
    if seed is None:
        drawn = torch.empty(1, dtype=torch.int64, device=x.device).random_(generator=rng)
    _drop[(triton.cdiv(x.numel(), BLOCK),)](
        y,
        mask,
        x,
        x if bias is None else bias,
        x if residual is None else residual,
        drawn,
        seed or 0,
        x.numel(),
        x.shape[-1] if x.ndim else 1,
        1 - rate,
        1 / (1 - rate),
        seed is None,
        bias is not None,
        residual is not None,
        packed,
        BLOCK,
        num_warps=WARPS,
    )
    return y, mask.view(torch.uint32) if packed else mask.view(torch.bool).view(x.shape)


def drop_grad(dy: Tensor, mask: Tensor, rate: float, out: Tensor | None = None) -> Tensor:
    """dx = dy / (1 - rate) where the mask, of truth values or packed, is true, else 0."""
    dx = torch.empty_like(dy) if out is None else out
    packed = mask.dtype is torch.uint32
    _grad[(triton.cdiv(dy.numel(), BLOCK),)](
        dx,
        dy,
        mask.view(torch.uint8),
        dy.numel(),
        1 / (1 - rate),
        packed,
        BLOCK,
        num_warps=WARPS,
    )
    return dx
