"""Dropout in one pass: the mask is drawn, packed if asked for, and applied where it is drawn.

A mask is that of Philox 4x32-10 with the seed as its key and the position as its counter. Without
a seed, one is drawn on the device from the session's generator, so a recorded step draws anew; each
of Philox's words then decides on two 16-bit elements by its halves.
"""

from __future__ import annotations

import functools
import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv

BLOCK = {2: 2048, 4: 1024}
"""Elements of a program, by the bytes of one."""
WARPS = 4
ROUNDS = 10
"""Rounds of Philox for masks without a seed."""
HALVES = True
"""Whether halves of words may decide, to which a rate is rounded by 2^-17 at most."""


@triton.jit
def _words(seed, counter, ROUNDS: tl.constexpr):
    """Four words of Philox for each number of the counter."""
    high = (counter.to(tl.int64) >> 32).to(tl.uint32)
    low = counter.to(tl.uint32)
    return tl.philox(seed, low * 0, low * 0, low, high, n_rounds=ROUNDS)


@triton.jit
def _kept(seed, group, limit, HALF: tl.constexpr, ROUNDS: tl.constexpr, G: tl.constexpr):
    """Which of each group's G elements are kept, by as many words of Philox or halves of them."""
    if HALF:
        a, b, c, d = _words(seed, group, ROUNDS)
        word = tl.join(_join(a, b, c, d) & 0xFFFF, _join(a, b, c, d) >> 16)
    elif G == 8:
        a, b, c, d = _words(seed, group * 2, ROUNDS)
        e, f, g, h = _words(seed, group * 2 + 1, ROUNDS)
        word = _join(tl.join(a, e), tl.join(b, f), tl.join(c, g), tl.join(d, h))
    else:
        a, b, c, d = _words(seed, group, ROUNDS)
        word = _join(a, b, c, d)
    return tl.reshape(word, (group.shape[0], G)) < limit


@triton.jit
def _join(a, b, c, d):
    """Four values side by side along the last axes, in this order."""
    return tl.join(tl.join(a, c), tl.join(b, d))


@triton.jit
def _octet(seed, group, limit, HALF: tl.constexpr, ROUNDS: tl.constexpr):
    """Which of each group's eight elements are kept, as bits."""
    if HALF:
        a, b, c, d = _words(seed, group, ROUNDS)
        bits = _nibble(a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16, limit)
        bits |= _nibble(c & 0xFFFF, c >> 16, d & 0xFFFF, d >> 16, limit) << 4
    else:
        a, b, c, d = _words(seed, group * 2, ROUNDS)
        bits = _nibble(a, b, c, d, limit)
        a, b, c, d = _words(seed, group * 2 + 1, ROUNDS)
        bits |= _nibble(a, b, c, d, limit) << 4
    return bits


@triton.jit
def _nibble(a, b, c, d, limit):
    low = tl.where(a < limit, 1, 0) | tl.where(b < limit, 2, 0)
    return low | tl.where(c < limit, 4, 0) | tl.where(d < limit, 8, 0)


@Compiled
@triton.jit(do_not_specialize=["seed", "limit"])
def _drop(
    y,
    mask,
    x,
    bias,
    residual,
    seeds,
    seed,
    limit,
    count,
    columns,
    scale,
    DRAWN: tl.constexpr,
    BIAS: tl.constexpr,
    ALIGNED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PACKED: tl.constexpr,
    WIDE: tl.constexpr,
    HALF: tl.constexpr,
    ROUNDS: tl.constexpr,
    G: tl.constexpr,
    B: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    first = number * B
    group = tl.arange(0, B // G)
    lane = (group * G)[:, None] + tl.arange(0, G)[None, :]
    there = lane < count - first
    if DRAWN:
        seed = tl.load(seeds)
    value = tl.load(x + first + lane, there, 0.0).to(tl.float32)
    limit = limit.to(tl.uint32)
    if PACKED:
        octet = _octet(seed, number * (B // G) + group, limit, HALF, ROUNDS)
        kept = (octet[:, None] & (1 << tl.arange(0, G))[None, :]) != 0
    else:
        kept = _kept(seed, number * (B // G) + group, limit, HALF, ROUNDS, G)
    if BIAS:
        start = (first % columns).to(tl.int32) if WIDE else first
        if ALIGNED:
            begin = tl.multiple_of((start + group * G) % columns, G)
            column = begin[:, None] + tl.arange(0, G)[None, :]
        else:
            column = (start + lane) % columns
        value += tl.load(bias + column, there, 0.0).to(tl.float32)
    value = tl.where(kept, value * scale, 0.0)
    if RESIDUAL:
        value += tl.load(residual + first + lane, there, 0.0).to(tl.float32)
    tl.store(y + first + lane, value.to(y.dtype.element_ty), there)
    if PACKED:
        # the last word is whole, and no bit behind the last element is set
        left = tl.minimum(tl.maximum(count - first - group * G, 0), G).to(tl.int32)
        octet = octet & ((1 << left) - 1)
        place = first // G + group
        tl.store(mask + place, octet.to(tl.uint8), place < (count + 31) // 32 * 4)
    else:
        tl.store(mask + first + lane, kept.to(tl.uint8), there)


@Compiled
@triton.jit
def _grad(dx, dy, mask, count, scale, PACKED: tl.constexpr, G: tl.constexpr, B: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * B
    group = tl.arange(0, B // G)
    lane = (group * G)[:, None] + tl.arange(0, G)[None, :]
    there = lane < count - first
    value = tl.load(dy + first + lane, there, 0.0).to(tl.float32)
    if PACKED:
        octet = tl.load(mask + first // 8 + group * G // 8, group * G < count - first, 0)
        kept = (octet.to(tl.int32)[:, None] >> lane % 8) & 1
    else:
        kept = tl.load(mask + first + lane, there, 0).to(tl.int32)
    value = tl.where(kept != 0, value * scale, 0.0)
    tl.store(dx + first + lane, value.to(dx.dtype.element_ty), there)


def takes(seed: int | None) -> bool:
    """Whether a seed is one that goes to the device as it is."""
    return seed is None or 0 <= seed < 1 << 63


@functools.cache
def _limit(share: float, half: bool) -> int:
    """The first word, or half of one, that is not kept, for a share of kept elements.

    A whole word w stands for w·2⁻³² + 2⁻³³, computed in float32.
    """
    if half:
        return round(share * 65536)
    low, high, most = 0, 1 << 32, _single(share)
    while low < high:
        middle = (low + high) // 2
        if _single(_single(middle) * 2.0**-32 + 2.0**-33) < most:
            low = middle + 1
        else:
            high = middle
    return min(low, (1 << 32) - 1)


def _single(number: float) -> float:
    """The nearest number of type float32."""
    (found,) = struct.unpack("f", struct.pack("f", number))
    return float(found)


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
    count, columns = x.numel(), x.shape[-1] if x.ndim else 1
    mask = torch.empty(4 * cdiv(count, 32) if packed else count, dtype=torch.uint8, device=x.device)
    drawn = mask
    if seed is None:
        drawn = torch.empty(1, dtype=torch.int64, device=x.device).random_(generator=rng)
    block, group = BLOCK[x.dtype.itemsize], 8 if packed else 16 // x.dtype.itemsize
    half = HALVES and seed is None and group == 8 and 1 / 256 <= rate <= 255 / 256
    _drop[(cdiv(count, block),)](
        y,
        mask,
        x,
        x if bias is None else bias,
        x if residual is None else residual,
        drawn,
        seed or 0,
        _limit(1 - rate, half),
        count,
        columns,
        1 / (1 - rate),
        seed is None,
        bias is not None,
        columns % group == 0,
        residual is not None,
        packed,
        count + block >= 1 << 31,
        half,
        ROUNDS if seed is None else 10,
        group,
        block,
        num_warps=WARPS,
    )
    return y, mask.view(torch.uint32) if packed else mask.view(torch.bool).view(x.shape)


def drop_grad(dy: Tensor, mask: Tensor, rate: float, out: Tensor | None = None) -> Tensor:
    """dx = dy / (1 - rate) where the mask, of truth values or packed, is true, else 0."""
    dx = torch.empty_like(dy) if out is None else out
    block = BLOCK[dy.dtype.itemsize]
    _grad[(cdiv(dy.numel(), block),)](
        dx,
        dy,
        mask.view(torch.uint8),
        dy.numel(),
        1 / (1 - rate),
        mask.dtype is torch.uint32,
        16 // dy.dtype.itemsize,
        block,
        num_warps=WARPS,
    )
    return dx
