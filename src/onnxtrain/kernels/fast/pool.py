"""The gradient of MaxPool for images: each element adds up the windows that found it.

No two programs write to the same place, so the order is always the same.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv, power

TILE, WARPS, REGISTERS = 512, 4, 40
"""Elements of a program, its warps, and registers of a thread."""


@triton.jit
def _windows(place, pad, stride, t: tl.constexpr, count):
    """The t-th of the windows that may reach a place, and whether there is one."""
    window = (place + pad) // stride - t
    return window, (window >= 0) & (window < count)


@Compiled
@triton.jit
def _rows(
    dx,
    dy,
    found,
    H,
    W,
    OH,
    OW,
    C,
    pad_h,
    pad_w,
    stride_h,
    stride_w,
    LAST: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
):
    """A tile of rows of a plane, or of places of a row with all their channels."""
    first = tl.program_id(1) * A + tl.arange(0, A)[:, None]
    second = tl.program_id(2) * B + tl.arange(0, B)[None, :]
    if LAST:
        image = tl.program_id(0) // H
        h = tl.program_id(0) % H + tl.zeros((1, 1), tl.int32)
        w, channel = first, second
        there = (w < W) & (channel < C)
        own = (image.to(tl.int64) * C + channel) * (H * W) + h * W + w
        target = (tl.program_id(0).to(tl.int64) * W + w) * C + channel
    else:
        plane = tl.program_id(0).to(tl.int64)
        h, w = first, second
        there = (h < H) & (w < W)
        own = plane * (H * W) + h * W + w
        target = own
    total = tl.zeros((A, B), tl.float32)
    for t in tl.static_range(TH):
        oh, inside_h = _windows(h, pad_h, stride_h, t, OH)
        for u in tl.static_range(TW):
            ow, inside_w = _windows(w, pad_w, stride_w, u, OW)
            if LAST:
                at = ((image.to(tl.int64) * OH + oh) * OW + ow) * C + channel
            else:
                at = (plane * OH + oh) * OW + ow
            mask = there & inside_h & inside_w
            hit = mask & (tl.load(found + at, mask, -1) == own)
            total += tl.load(dy + at, hit, 0.0).to(tl.float32)
    tl.store(dx + target, total.to(dx.dtype.element_ty), there)


def max_pool_grad(
    dy: Tensor,
    found: Tensor,
    shape: tuple[int, ...],
    reach: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
) -> Tensor:
    """dx[i] = sum of dy over the windows, of so many places, whose largest element was i."""
    batch, channels, height, width = shape
    last = dy.is_contiguous(memory_format=torch.channels_last) and not dy.is_contiguous()
    layout = torch.channels_last if last else torch.contiguous_format
    dy, found = dy.contiguous(memory_format=layout), found.contiguous(memory_format=layout)
    dx = torch.empty(shape, dtype=dy.dtype, device=dy.device, memory_format=layout)
    outer, rows, columns = (
        (batch * height, width, channels) if last else (batch * channels, height, width)
    )
    across = min(power(columns), 256)
    down = max(1, min(TILE // across, power(rows)))
    _rows[(outer, cdiv(rows, down), cdiv(columns, across))](
        dx,
        dy,
        found,
        height,
        width,
        dy.shape[2],
        dy.shape[3],
        channels,
        *pads,
        *strides,
        last,
        *(cdiv(length, stride) for length, stride in zip(reach, strides, strict=True)),
        down,
        across,
        num_warps=WARPS,
        maxnreg=REGISTERS,
    )
    return dx
