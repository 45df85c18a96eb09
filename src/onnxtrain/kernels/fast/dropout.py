"""Dropout in one pass: the mask is drawn, packed if asked for, and applied where it is drawn.

A mask is that of Philox 4x32-10 with the seed as its key and the position as its counter.

Without a seed, the session's generator gives one. While a step is recorded it is drawn on the
device, so that every replay draws anew; else the host computes what would be drawn there, which
saves a launch. Each of Philox's words then decides on two
16-bit elements by its halves, and seven rounds make the words: these are the fewest that pass all
tests of BigCrush (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), where the
ten of masks with a seed leave a margin that costs a fifth of the time of packed masks.
"""

from __future__ import annotations

import functools
import struct

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.launch import cdiv, whole_blocks
from onnxtrain.kernels.rehearsal import rehearsing

GROUPS, WARPS = 128, 4
"""Groups of elements of a program, one for each thread, and its warps."""
FEW, SMALL_BLOCK, SMALL_GROUP, SMALL_WARPS = 1 << 18, 2048, 4, 16
"""Elements of a small gradient; of such a one those of a program and of a thread, and warps."""
ROUNDS = 7
"""Rounds of Philox for masks without a seed."""
HALVES = True
"""Whether halves of words may decide, to which a rate is rounded by 2^-17 at most."""
OFFSETS = 4
"""By how much a generator's offset grows with a draw: Philox makes so many words at a time."""
AHEAD = 256
"""Draws of a generator that the host computes together."""


@triton.jit
def _words(seed, counter, ROUNDS: tl.constexpr):
    """Four words of Philox for each number of the counter."""
    high = (counter.to(tl.int64) >> 32).to(tl.uint32)
    low = counter.to(tl.uint32)
    return tl.philox(seed, low * 0, low * 0, low, high, n_rounds=ROUNDS)


@triton.jit
def kept_of(seed, group, limit, HALF: tl.constexpr, ROUNDS: tl.constexpr, G: tl.constexpr):
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


@triton.jit
def as_bytes(pointer):
    """The same memory as bytes."""
    return pointer.to(tl.pointer_type(tl.uint8), bitcast=True)


@Early
@triton.jit(do_not_specialize=["seed", "limit"])
def _drop(
    y,
    mask,
    x,
    bias,
    residual,
    seeds,
    seed: tl.uint64,
    limit: tl.uint32,
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
    wait()
    number = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    first = number * B
    group = tl.arange(0, B // G)
    lane = (group * G)[:, None] + tl.arange(0, G)[None, :]
    there = lane < count - first
    if DRAWN:
        seed = seed.to(tl.uint64) + tl.load(seeds).to(tl.uint64)
    value = tl.load(x + first + lane, there, 0.0).to(tl.float32)
    limit = limit.to(tl.uint32)
    if PACKED:
        octet = _octet(seed, number * (B // G) + group, limit, HALF, ROUNDS)
        kept = (octet[:, None] & (1 << tl.arange(0, G))[None, :]) != 0
    else:
        kept = kept_of(seed, number * (B // G) + group, limit, HALF, ROUNDS, G)
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
        tl.store(as_bytes(mask) + place, octet.to(tl.uint8), place < (count + 31) // 32 * 4)
    else:
        tl.store(as_bytes(mask) + first + lane, kept.to(tl.uint8), there)


@Early
@triton.jit
def _grad(
    dx,
    dy,
    mask,
    count,
    scale,
    PACKED: tl.constexpr,
    WHOLE: tl.constexpr,
    G: tl.constexpr,
    B: tl.constexpr,
):
    wait()
    first = tl.program_id(0) * B if WHOLE else tl.program_id(0).to(tl.int64) * B
    group = tl.arange(0, B // G)
    lane = (group * G)[:, None] + tl.arange(0, G)[None, :]
    there = None if WHOLE else lane < count - first
    value = tl.load(dy + first + lane) if WHOLE else tl.load(dy + first + lane, there, 0.0)
    if PACKED:
        place = as_bytes(mask) + (first // 8 + group * G // 8)
        octet = tl.load(place) if WHOLE else tl.load(place, group * G < count - first, 0)
        kept = (octet.to(tl.int32)[:, None] >> lane % 8) & 1
    else:
        place = as_bytes(mask) + first + lane
        kept = tl.load(place) if WHOLE else tl.load(place, there, 0)
    value = tl.where(kept != 0, value.to(tl.float32) * scale, 0.0)
    tl.store(dx + first + lane, value.to(dx.dtype.element_ty), there)


def takes(seed: int | None) -> bool:
    """Whether a seed is one that goes to the device as it is."""
    return seed is None or 0 <= seed < 1 << 63


@functools.cache
def limit_of(share: float, half: bool) -> int:
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
    count, columns, size = x.numel(), x.shape[-1] if x.ndim else 1, x.dtype.itemsize
    if packed:
        mask = torch.empty(cdiv(count, 32), dtype=torch.uint32, device=x.device)
    else:
        mask = torch.empty_like(x, dtype=torch.bool)
    key, drawn = next_seed(x, rng) if seed is None else (seed, mask)
    group = 8 if packed else 16 // size
    half = HALVES and seed is None and group == 8 and 1 / 256 <= rate <= 255 / 256
    block = group * GROUPS
    _drop[(cdiv(count, block),)](
        y,
        mask,
        x,
        x if bias is None else bias,
        x if residual is None else residual,
        drawn,
        key,
        limit_of(1 - rate, half),
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
    return y, mask


def next_seed(x: Tensor, rng: torch.Generator | None) -> tuple[int, Tensor]:
    """What a generator draws next, and 0 in memory of the device; or 0, and what it draws there.

    The kernel adds them: one that differed would be compiled while a step is recorded.
    """
    if not x.is_cuda or rehearsing() or torch.cuda.is_current_stream_capturing():
        return 0, torch.empty(1, dtype=torch.int64, device=x.device).random_(generator=rng)
    generator = torch.cuda.default_generators[x.get_device()] if rng is None else rng
    offset = generator.get_offset()
    generator.set_offset(offset + OFFSETS)
    block, place = divmod(offset // OFFSETS, AHEAD)
    return draws(generator.initial_seed(), block)[place], _zero(x.device)


@functools.cache
def _zero(device: torch.device) -> Tensor:
    return torch.zeros(1, dtype=torch.int64, device=device)


@functools.lru_cache(maxsize=64)
def draws(seed: int, block: int) -> list[int]:
    """Whole numbers that ``random_`` draws on a GPU, one a launch, from offsets of a block on.

    The first two words of Philox 4x32-10 with the seed as its key and the launch as its counter.
    """
    counter = np.arange(block * AHEAD, (block + 1) * AHEAD, dtype=np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = counter & low, counter >> half, counter * 0, counter * 0
    keys = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = second >> half ^ b ^ np.uint64(keys[0]), second & low
        c, d = first >> half ^ d ^ np.uint64(keys[1]), first & low
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    words = (a << half | b) & np.uint64((1 << 63) - 1)
    return [int(word) for word in words]


def drop_grad(dy: Tensor, mask: Tensor, rate: float, out: Tensor | None = None) -> Tensor:
    """dx = dy / (1 - rate) where the mask, of truth values or packed, is true, else 0."""
    dx, count = torch.empty_like(dy) if out is None else out, dy.numel()
    if count <= FEW:
        group, block, warps = SMALL_GROUP, SMALL_BLOCK, SMALL_WARPS
    else:
        group = 16 // dy.dtype.itemsize
        block, warps = group * GROUPS, WARPS
    _grad[(cdiv(count, block),)](
        dx,
        dy,
        mask,
        count,
        1 / (1 - rate),
        mask.dtype is torch.uint32,
        whole_blocks(count, block),
        group,
        block,
        num_warps=warps,
    )
    return dx
