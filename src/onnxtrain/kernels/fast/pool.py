"""Gradients of MaxPool and AveragePool for images: each element adds up the windows it was in.

No two programs write to the same place, so the order is always the same.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv, power

TILE, WARPS, REGISTERS = 512, 4, 64
"""Elements of a program, its warps, and registers of a thread."""
MEAN_WARPS = 2
"""Warps of a program for means in planes, whose elements take fewer registers."""
MOST_WINDOWS = 16
"""Windows to which an element may belong."""


@triton.jit
def _tile(H, W, C, LAST: tl.constexpr, A: tl.constexpr, B: tl.constexpr):
    """A tile of rows of a plane, or of places of a row with all their channels.

    Its places, the image or plane, channels, which elements there are, and where they lie in it.
    """
    first = tl.program_id(1) * A + tl.arange(0, A)[:, None]
    second = tl.program_id(2) * B + tl.arange(0, B)[None, :]
    if LAST:
        outer = tl.program_id(0) // H
        h = tl.program_id(0) % H + tl.zeros((1, 1), tl.int32)
        w, channel = first, second
        there = (w < W) & (channel < C)
        target = (h * W + w) * C + channel
    else:
        outer = tl.program_id(0)
        h, w, channel = first, second, 0
        there = (h < H) & (w < W)
        target = h * W + w
    return h, w, outer.to(tl.int64), channel, there, target


@triton.jit
def _window(
    place, count, t: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr
):
    """The t-th of the windows that may reach a place, and whether there is one that does."""
    window = (place + PAD) // STRIDE - t
    return window, (window >= 0) & (window < count) & (place + PAD - window * STRIDE < K)


@Compiled
@triton.jit
def _of_most(
    dx,
    dy,
    found,
    H,
    W,
    OH,
    OW,
    C,
    LAST: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
):
    h, w, outer, channel, there, target = _tile(H, W, C, LAST, A, B)
    planes = C if LAST else 1
    # indices of a tensor differ in their lower halves if it is no larger than those
    own = (outer * planes * H * W).to(tl.int32) + channel * (H * W) + h * W + w
    dy += outer * planes * OH * OW
    found += outer * planes * OH * OW
    total = tl.zeros((A, B), tl.float32)
    for t in tl.static_range((KH + SH - 1) // SH):
        oh, inside_h = _window(h, OH, t, KH, SH, PH)
        for u in tl.static_range((KW + SW - 1) // SW):
            ow, inside_w = _window(w, OW, u, KW, SW, PW)
            at = (oh * OW + ow) * C + channel if LAST else oh * OW + ow
            mask = there & inside_h & inside_w
            hit = tl.load(found + at, mask, -1).to(tl.int32) == own
            total += tl.where(hit, tl.load(dy + at, mask, 0.0).to(tl.float32), 0.0)
    tl.store(dx + outer * planes * H * W + target, total.to(dx.dtype.element_ty), there)


@triton.jit
def _share(
    window,
    size,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    PADDED: tl.constexpr,
):
    """1 / (how many places of an axis a window counts)."""
    begin = window * STRIDE - PAD
    end = tl.minimum(begin + K, size + PAD)
    if not PADDED:
        begin, end = tl.maximum(begin, 0), tl.minimum(end, size)
    return 1.0 / tl.maximum(end - begin, 1).to(tl.float32)


@Compiled
@triton.jit
def _of_mean(
    dx,
    dy,
    H,
    W,
    OH,
    OW,
    C,
    LAST: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
    PADDED: tl.constexpr,
):
    h, w, outer, channel, there, target = _tile(H, W, C, LAST, A, B)
    planes = C if LAST else 1
    dy += outer * planes * OH * OW
    total = tl.zeros((A, B), tl.float32)
    for t in tl.static_range((KH + SH - 1) // SH):
        oh, inside_h = _window(h, OH, t, KH, SH, PH)
        share_h = _share(oh, H, KH, SH, PH, PADDED)
        for u in tl.static_range((KW + SW - 1) // SW):
            ow, inside_w = _window(w, OW, u, KW, SW, PW)
            share = share_h * _share(ow, W, KW, SW, PW, PADDED)
            at = (oh * OW + ow) * C + channel if LAST else oh * OW + ow
            mask = there & inside_h & inside_w
            total += tl.load(dy + at, mask, 0.0).to(tl.float32) * share
    tl.store(dx + outer * planes * H * W + target, total.to(dx.dtype.element_ty), there)


@Compiled
@triton.jit
def _by_twos(
    dx,
    dy,
    found,
    H,
    W,
    OH,
    OW,
    C,
    LAST: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
    MEAN: tl.constexpr,
    PADDED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Windows at every other place: two by two elements are in the same few windows."""
    h, w, outer, channel, _, _ = _tile((H + 1) // 2, (W + 1) // 2, C, LAST, A, B)
    planes = C if LAST else 1
    dy += outer * planes * OH * OW
    found += outer * planes * OH * OW
    dx += outer * planes * H * W
    own = (outer * planes * H * W).to(tl.int32) + channel * (H * W) + 2 * (h * W + w)
    upper_left = tl.zeros((A, B), tl.float32)
    upper_right = tl.zeros((A, B), tl.float32)
    lower_left = tl.zeros((A, B), tl.float32)
    lower_right = tl.zeros((A, B), tl.float32)
    for down in tl.static_range(-((KH - 1 - PH) // 2), (1 + PH) // 2 + 1):
        oh = h + down
        top = PH - 2 * down
        for right in tl.static_range(-((KW - 1 - PW) // 2), (1 + PW) // 2 + 1):
            ow = w + right
            left = PW - 2 * right
            mask = (oh >= 0) & (oh < OH) & (ow >= 0) & (ow < OW)
            if LAST:
                mask = mask & (channel < C)
            # columns in 64 bits differ by parts of the instruction that loads
            at = (oh * OW + ow) * C + channel if LAST else (w.to(tl.int64) + right)
            row = 0 if LAST else oh * OW
            value = tl.load(dy + row + at, mask, 0.0).to(tl.float32)
            if MEAN:
                if WHOLE:
                    value *= 1.0 / (KH * KW)
                else:
                    value *= _share(oh, H, KH, 2, PH, PADDED) * _share(ow, W, KW, 2, PW, PADDED)
                place = 0
            else:
                place = tl.load(found + row + at, mask, -1).to(tl.int32) - own
            upper_left += _part(value, place, 0, top, KH, left, KW, MEAN)
            upper_right += _part(value, place, 1, top, KH, left + 1, KW, MEAN)
            lower_left += _part(value, place, W, top + 1, KH, left, KW, MEAN)
            lower_right += _part(value, place, W + 1, top + 1, KH, left + 1, KW, MEAN)
    _store_two(dx, upper_left, upper_right, 2 * h, w, H, W, C, channel, LAST, B)
    _store_two(dx, lower_left, lower_right, 2 * h + 1, w, H, W, C, channel, LAST, B)


@triton.jit
def _part(
    value,
    place,
    at,
    down: tl.constexpr,
    KH: tl.constexpr,
    right: tl.constexpr,
    KW: tl.constexpr,
    MEAN: tl.constexpr,
):
    """What an element, so far behind the begin of a window, has of the window's value."""
    if (down < 0) | (down >= KH) | (right < 0) | (right >= KW):
        part = tl.zeros(value.shape, tl.float32)
    elif MEAN:
        part = value
    else:
        part = tl.where(place == at, value, 0.0)
    return part


@triton.jit
def _store_two(dx, one, other, h, w, H, W, C, channel, LAST: tl.constexpr, B: tl.constexpr):
    """Two columns of a row beside each other."""
    kind = dx.dtype.element_ty
    if LAST:
        at = (h * W + 2 * w) * C + channel
        there = (h < H) & (channel < C)
        tl.store(dx + at, one.to(kind), there & (2 * w < W))
        tl.store(dx + at + C, other.to(kind), there & (2 * w + 1 < W))
    else:
        column = tl.program_id(2) * (2 * B) + tl.arange(0, 2 * B)[None, :]
        both = tl.interleave(one, other).to(kind)
        tl.store(dx + h * W + column, both, (h < H) & (column < W))


def max_pool_grad(
    dy: Tensor,
    found: Tensor,
    shape: tuple[int, ...],
    reach: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
) -> Tensor:
    """dx[i] = sum of dy over the windows, of so many places, whose largest element was i."""
    dx, dy, last = _laid_out(dy, shape)
    found = found.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    if strides == (2, 2):
        _launch_by_twos((dx, dy, found), last, reach, pads, False, False)
    else:
        _launch(_of_most, (dx, dy, found), last, reach, strides, pads)
    return dx


def takes_mean(kernel: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether no element is in too many windows."""
    return math.prod(map(cdiv, kernel, strides)) <= MOST_WINDOWS


def average_pool_grad(
    dy: Tensor,
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    padded: bool,
) -> Tensor:
    """dx[i] = sum of dy / (places that a window counts, perhaps ``padded``) over windows with i."""
    dx, dy, last = _laid_out(dy, shape)
    if strides == (2, 2):
        _launch_by_twos((dx, dy, dy), last, kernel, pads, True, padded)
    else:
        _launch(_of_mean, (dx, dy), last, kernel, strides, pads, padded)
    return dx


def _laid_out(dy: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, bool]:
    """Room for dx, dy without gaps, and whether both have their channels last."""
    last = dy.is_contiguous(memory_format=torch.channels_last) and not dy.is_contiguous()
    layout = torch.channels_last if last else torch.contiguous_format
    dx = torch.empty(shape, dtype=dy.dtype, device=dy.device, memory_format=layout)
    return dx, dy.contiguous(memory_format=layout), last


def _grid(shape: tuple[int, ...], size: int, last: bool) -> tuple[tuple[int, ...], int, int]:
    """Programs for so many places, and the rows and columns of a tile."""
    batch, channels, height, width = shape
    outer, rows, columns = (
        (batch * height, width, channels) if last else (batch * channels, height, width)
    )
    across = min(power(columns), 256)
    # channels are read 16 bytes at once
    tile = 32 * WARPS * 16 // size if last else TILE
    down = max(1, min(tile // across, power(rows)))
    return (outer, cdiv(rows, down), cdiv(columns, across)), down, across


def _launch(
    kernel: Compiled,
    tensors: tuple[Tensor, ...],
    last: bool,
    reach: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    *more: int,
) -> None:
    dx, dy = tensors[:2]
    grid, down, across = _grid(dx.shape, dx.dtype.itemsize, last)
    kernel[grid](
        *tensors,
        *(*dx.shape[2:], *dy.shape[2:], dx.shape[1]),
        *(last, *reach, *strides, *pads, down, across, *more),
        num_warps=WARPS,
        maxnreg=REGISTERS,
    )


def _launch_by_twos(
    tensors: tuple[Tensor, ...],
    last: bool,
    reach: tuple[int, ...],
    pads: tuple[int, ...],
    mean: bool,
    padded: bool,
) -> None:
    dx, dy = tensors[:2]
    batch, channels, height, width = dx.shape
    halves = (batch, channels, cdiv(height, 2), cdiv(width, 2))
    ends = [
        2 * (count - 1) + k - 2 * p for count, k, p in zip(dy.shape[2:], reach, pads, strict=True)
    ]
    whole = (padded or not any(pads)) and ends[0] <= height and ends[1] <= width
    grid, down, across = _grid(halves, dx.dtype.itemsize, last)
    _by_twos[grid](
        *tensors,
        *(height, width, *dy.shape[2:], channels),
        *(last, *reach, *pads, down, across, mean, padded, whole),
        num_warps=MEAN_WARPS if mean and not last else WARPS,
    )
