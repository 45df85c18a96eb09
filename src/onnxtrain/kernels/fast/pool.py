"""Gradients of MaxPool and AveragePool for images: each element adds up the windows it was in.

No two programs write to the same place, so the order is always the same.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import pool_squares
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv, power
from onnxtrain.kernels.fast.pool_squares import MOST_WINDOWS, share

TILE, WARPS = 512, 4
"""Elements of a program where planes follow each other, and its warps."""


@triton.jit
def _tile(H, W, C, LAST: tl.constexpr, A: tl.constexpr, B: tl.constexpr):
    """A tile of rows of a plane, or of places of a row with all their channels.

    Its places, the image or plane, channels, which elements there are, and where they lie in it.
    Programs go through a plane before they go to the next: what two of them read is in the cache.
    """
    tiles = tl.cdiv(W if LAST else H, A)
    outer = tl.program_id(0) // tiles
    first = tl.program_id(0) % tiles * A + tl.arange(0, A)[:, None]
    second = tl.program_id(1) * B + tl.arange(0, B)[None, :]
    if LAST:
        h = outer % H + tl.zeros((1, 1), tl.int32)
        outer = outer // H
        w, channel = first, second
        there = (w < W) & (channel < C)
        target = (h * W + w) * C + channel
    else:
        h, w, channel = first, second, 0
        there = (h < H) & (w < W)
        target = h * W + w
    return h, w, outer.to(tl.int64), channel, there, target


@triton.jit
def _window(place, count, t, K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr):
    """The t-th of the windows that may reach a place, and whether there is one that does."""
    window = (place + PAD) // STRIDE - t
    return window, (window >= 0) & (window < count) & (place + PAD - window * STRIDE < K)


@Compiled
@triton.jit
def _elements(
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
    MEAN: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Windows at any distance: each element looks at all that may reach it."""
    h, w, outer, channel, there, target = _tile(H, W, C, LAST, A, B)
    planes = C if LAST else 1
    # indices of a tensor differ in their lower halves if it is no larger than those
    own = (outer * planes * H * W).to(tl.int32) + channel * (H * W) + h * W + w
    dy += outer * planes * OH * OW
    found += outer * planes * OH * OW
    total = tl.zeros((A, B), tl.float32)
    if MEAN:
        for t in tl.static_range((KH + SH - 1) // SH):
            oh, inside = _window(h, OH, t, KH, SH, PH)
            part = share(oh, H, KH, SH, PH, PADDED)
            for u in tl.static_range((KW + SW - 1) // SW):
                ow, beside = _window(w, OW, u, KW, SW, PW)
                at = (oh * OW + ow) * C + channel if LAST else oh * OW + ow
                value = tl.load(dy + at, there & inside & beside, 0.0).to(tl.float32)
                total += value * (part * share(ow, W, KW, SW, PW, PADDED))
    else:
        # a loop, since windows may be hundreds, which would take a minute to compile
        for t in tl.range((KH + SH - 1) // SH, num_stages=1):
            oh, inside = _window(h, OH, t, KH, SH, PH)
            for u in tl.static_range((KW + SW - 1) // SW):
                ow, beside = _window(w, OW, u, KW, SW, PW)
                at = (oh * OW + ow) * C + channel if LAST else oh * OW + ow
                mask = there & inside & beside
                here = tl.load(found + at, mask, -1).to(tl.int32) == own
                total += tl.where(here, tl.load(dy + at, mask, 0.0).to(tl.float32), 0.0)
    tl.store(dx + outer * planes * H * W + target, total.to(dx.dtype.element_ty), there)


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
    if pool_squares.takes(shape, reach, strides):
        pool_squares.launch((dx, dy, found), last, reach, pads, mean=False, padded=False)
    else:
        _launch((dx, dy, found), last, reach, strides, pads, mean=False, padded=False)
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
    if pool_squares.takes(shape, kernel, strides):
        pool_squares.launch((dx, dy, dy), last, kernel, pads, mean=True, padded=padded)
    else:
        _launch((dx, dy, dy), last, kernel, strides, pads, mean=True, padded=padded)
    return dx


def _laid_out(dy: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, bool]:
    """Room for dx, dy without gaps, and whether both have their channels last."""
    last = dy.is_contiguous(memory_format=torch.channels_last) and not dy.is_contiguous()
    layout = torch.channels_last if last else torch.contiguous_format
    dx = torch.empty(shape, dtype=dy.dtype, device=dy.device, memory_format=layout)
    return dx, dy.contiguous(memory_format=layout), last


def _launch(
    tensors: tuple[Tensor, Tensor, Tensor],
    last: bool,
    reach: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    mean: bool,
    padded: bool,
) -> None:
    dx, dy, _ = tensors
    batch, channels, height, width = dx.shape
    outer, rows, columns = (
        (batch * height, width, channels) if last else (batch * channels, height, width)
    )
    across = min(power(columns), 256)
    # channels are read 16 bytes at once
    tile = 32 * WARPS * 16 // dx.dtype.itemsize if last else TILE
    down = max(1, min(tile // across, power(rows)))
    _elements[outer * cdiv(rows, down), cdiv(columns, across)](
        *tensors,
        *(height, width, *dy.shape[2:], channels),
        *(last, *reach, *strides, *pads, down, across, mean, padded),
        num_warps=WARPS,
    )
