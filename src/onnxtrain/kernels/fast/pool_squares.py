"""Gradients of pools whose windows begin at every other place: a thread has squares of two by two.

The elements of such a square are in the same few windows, and so are squares beside each other: a
thread reads each window of several squares once. Kernels take images of any size. Only for largest
elements of many images whose channels lie last they are compiled for one size: loads that are found
by constants all start before the first is waited for, which takes a tenth off their time.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import NATIVE
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv, power

WARPS = 4
MOST_WINDOWS = 16
"""Windows to which an element may belong, as their values stay in registers."""
MOST_PROGRAMS = 65535
"""Programs that a launch may have along its second and third axis."""
FEW = 1 << 20
"""Squares up to which a thread has one row of them, so that all of the GPU works."""
PLAIN = 3
"""Size of windows up to which a thread has several rows of squares."""


@triton.jit
def _in_planes(planes, H, W, OH, OW, R: tl.constexpr, N: tl.constexpr):
    """The squares of this program, where planes follow each other.

    Row and column of the first square of each thread, whether there is one, where its elements and
    its window begin, and the index of its first element.
    """
    strips = tl.cdiv(H, 2 * R)
    across = tl.cdiv(W, 4)
    group = tl.program_id(0) * N + tl.arange(0, N)
    h = group // across % strips * R
    w = group % across * 2
    plane = (group // across // strips).to(tl.int64)
    target = (plane * H + 2 * h) * W + 2 * w
    return h, w, plane < planes, target, (plane * OH + h) * OW + w, target.to(tl.int32)


@triton.jit
def _in_images(H, W, OH, OW, C: tl.constexpr, R: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    """The same where channels follow each other, of which a program has a part, and a row."""
    parts: tl.constexpr = (C + B - 1) // B
    channel = tl.program_id(0) % parts * B + tl.arange(0, B)[None, :]
    w = tl.program_id(0) // parts * N + tl.arange(0, N)[:, None]
    h = tl.program_id(1) * R + tl.zeros((1, 1), tl.int32)
    image = tl.program_id(2).to(tl.int64)
    target = (image * H + 2 * h) * W * C + (2 * w * C + channel)
    source = (image * OH + h) * OW * C + (w * C + channel)
    # indices of a tensor differ in their lower halves if it is no larger than those
    index = ((image * C * H + 2 * h) * W).to(tl.int32) + 2 * w + channel * (H * W)
    return h, w, (2 * w < W) & (channel < C), target, source, index


@triton.jit
def _windows(
    of,
    at,
    there,
    w,
    OW,
    STEP: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    PAIRS: tl.constexpr,
    NONE: tl.constexpr,
):
    """What a row of windows has from column LEFT up to RIGHT of a thread; NONE beside the image."""
    row = ()
    for j in tl.static_range(LEFT, RIGHT):
        if PAIRS and j == 0:
            pair = tl.arange(0, 2)[None, :]
            row += tl.split(tl.load(of + at[:, None] + pair, (there & (w < OW))[:, None], NONE))
        elif not PAIRS or j != 1:
            mask = there & (w < OW - j)
            if j < 0:
                mask = mask & (w >= -j)
            row += (tl.load(of + at + j * STEP, mask, NONE),)  # type: ignore[assignment]
    return row


@triton.jit
def share(
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


@triton.jit
def _shares(
    row,
    h,
    w,
    H,
    W,
    KH: tl.constexpr,
    KW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    MEAN: tl.constexpr,
    PADDED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """What windows beside each other hand to an element; all may have their WHOLE size."""
    shares = ()
    for j in tl.static_range(len(row)):
        value = row[j].to(tl.float32)
        if MEAN and WHOLE:
            value *= 1.0 / (KH * KW)
        elif MEAN:
            value *= share(h, H, KH, 2, PH, PADDED) * share(w + j, W, KW, 2, PW, PADDED)
        shares += (value,)  # type: ignore[assignment]
    return shares


@triton.jit
def _behind(row, index):
    """How far behind an index windows beside each other have found their largest elements."""
    places = ()
    for j in tl.static_range(len(row)):
        places += (row[j].to(tl.int32) - index,)  # type: ignore[assignment]
    return places


@triton.jit
def _added(total, value, place, at):
    """The total, with the value of a window added if that has found its largest element here.

    Compilers select the value or 0 and add what was selected. Here it is the addition that is done
    or not: two instructions instead of three, and a square has five to sixteen of these.
    """
    if NATIVE:
        asm: tl.constexpr = """{
            .reg .pred here;
            setp.eq.s32 here, $3, $4;
            mov.f32 $0, $1;
            @here add.f32 $0, $1, $2;
        }"""
        total = tl.inline_asm_elementwise(
            asm, "=&f,f,f,r,r", [total, value, place, at], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        total += tl.where(place == at, value, 0.0)
    return total


@triton.jit
def _sum(
    values,
    places,
    at,
    DOWN: tl.constexpr,
    RIGHT: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    MEAN: tl.constexpr,
):
    """Sum over the windows of the element so far DOWN and RIGHT of a thread's first one."""
    top: tl.constexpr = (DOWN + PH - KH) // 2 + 1
    left: tl.constexpr = (RIGHT + PW - KW) // 2 + 1
    total = tl.zeros(values[0][0].shape, tl.float32)
    for k in tl.static_range(top, (DOWN + PH) // 2 + 1):
        for j in tl.static_range(left, (RIGHT + PW) // 2 + 1):
            value = values[k - (PH - KH) // 2 - 1][j - (PW - KW) // 2 - 1]
            place = places[k - (PH - KH) // 2 - 1][j - (PW - KW) // 2 - 1]
            if k == top and j == left:
                total = value if MEAN else tl.where(place == at, value, 0.0)
            else:
                total = total + value if MEAN else _added(total, value, place, at)
    return total


@triton.jit
def _store(dx, at, row, there, w, W, STEP: tl.constexpr, LAST: tl.constexpr, FOURS: tl.constexpr):
    """The elements of a thread in a row; images in planes may have rows of whole FOURS."""
    kind: tl.constexpr = dx.dtype.element_ty
    if LAST:
        tl.store(dx + at, row[0].to(kind), there)
        tl.store(dx + at + STEP, row[1].to(kind), there & (2 * w + 1 < W))
    else:
        q = tl.arange(0, 4)[None, :]
        pairs = tl.join(tl.join(row[0], row[2]), tl.join(row[1], row[3]))
        four = tl.reshape(pairs, (row[0].shape[0], 4))
        mask = there[:, None]
        if not FOURS:
            mask = mask & (2 * w[:, None] + q < W)
        tl.store(dx + at[:, None] + q, four.to(kind), mask)


@Compiled
@triton.jit
def _squares(
    dx,
    dy,
    found,
    planes,
    H,
    W,
    OH,
    OW,
    KNOWN_H: tl.constexpr,
    KNOWN_W: tl.constexpr,
    KNOWN_OH: tl.constexpr,
    KNOWN_OW: tl.constexpr,
    C: tl.constexpr,
    LAST: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
    B: tl.constexpr,
    MEAN: tl.constexpr,
    PADDED: tl.constexpr,
    WHOLE: tl.constexpr,
    PAIRS: tl.constexpr,
    FOURS: tl.constexpr,
):
    """R rows of squares: one each with channels last, two each in planes."""
    V: tl.constexpr = 1 if LAST else 2
    LEFT: tl.constexpr = (PW - KW) // 2 + 1
    RIGHT: tl.constexpr = (2 * V - 1 + PW) // 2 + 1
    if KNOWN_H:
        H, W, OH, OW = KNOWN_H, KNOWN_W, KNOWN_OH, KNOWN_OW
    if PAIRS:
        OW = OW // 2 * 2  # from this the compiler knows how addresses are aligned
    if FOURS:
        W = W // 4 * 4
    if LAST:
        h, w, there, target, source, index = _in_images(H, W, OH, OW, C, R, N, B)
    else:
        h, w, there, target, source, index = _in_planes(planes, H, W, OH, OW, R, N)
    values = ()
    places = ()
    for k in tl.static_range((PH - KH) // 2 + 1, (2 * R - 1 + PH) // 2 + 1):
        inside = there & (h < OH - k)
        if k < 0:
            inside = inside & (h >= -k)
        row = _windows(dy + k * (OW * C), source, inside, w, OW, C, LEFT, RIGHT, PAIRS, 0)
        row = _shares(row, h + k, w + LEFT, H, W, KH, KW, PH, PW, MEAN, PADDED, WHOLE)
        values += (row,)  # type: ignore[assignment]
        if not MEAN:
            row = _windows(found + k * (OW * C), source, inside, w, OW, C, LEFT, RIGHT, PAIRS, None)
            row = _behind(row, index)
        places += (row,)  # type: ignore[assignment]
    for r in tl.static_range(2 * R):
        row = ()
        for q in tl.static_range(2 * V):
            row += (_sum(values, places, r * W + q, r, q, KH, KW, PH, PW, MEAN),)
        _store(dx + r * (W * C), target, row, there & (2 * h < H - r), w, W, C, LAST, FOURS)


def takes(shape: tuple[int, ...], reach: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether windows begin at every other place, and neither they nor images are too many."""
    few = math.prod(cdiv(k, 2) for k in reach) <= MOST_WINDOWS
    return strides == (2, 2) and few and max(shape[0], cdiv(shape[2], 2)) <= MOST_PROGRAMS


def launch(
    tensors: tuple[Tensor, Tensor, Tensor],
    last: bool,
    reach: tuple[int, ...],
    pads: tuple[int, ...],
    mean: bool,
    padded: bool,
) -> None:
    """dx, dy and where largest elements were found: dx of the most or mean of such windows."""
    dx, dy, _ = tensors
    batch, channels, height, width = dx.shape
    sizes = (height, width, *dy.shape[2:])
    many = dx.numel() > 4 * FEW and max(reach) <= PLAIN
    rows = _rows(width, dx.dtype.itemsize, last, mean) if many else 1
    strips = cdiv(height, 2 * rows)
    if last:
        each = _channels(channels, dx.dtype.itemsize, mean, many)
        block, step = min(power(channels), 256), channels
        groups = min(max(1, 32 * WARPS * each // block), power(cdiv(width, 2)))
        grid = (cdiv(width, 2 * groups) * cdiv(channels, block), strips, batch)
    else:
        block, step, groups = 1, 1, 32 * WARPS
        grid = (cdiv(batch * channels * strips * cdiv(width, 4), groups), 1, 1)
    _squares[grid](
        *(*tensors, batch * channels, *sizes),
        *(sizes if last and many and not mean else (0, 0, 0, 0)),
        *(step, last, *reach, *pads, rows, groups, block, mean, padded),
        mean and _whole(sizes, reach, pads, padded),
        *(not last and sizes[3] % 2 == 0, not last and width % 4 == 0),
        num_warps=WARPS,
    )


def _rows(width: int, size: int, last: bool, mean: bool) -> int:
    """Rows of squares of a thread: the fastest on an H200 for elements of so many bytes."""
    if last:
        return 1 if mean else 4
    return 4 // size if width % 4 == 0 else 4


def _channels(channels: int, size: int, mean: bool, many: bool) -> int:
    """Channels of a thread, 16 bytes of elements or of indices, if they lie so.

    Of few images it has one: registers for more indices would make half of the loads wait.
    """
    if channels % 16:
        return 1
    if mean:
        return 16 // size
    return 2 if many else 1


def _whole(
    sizes: tuple[int, ...], reach: tuple[int, ...], pads: tuple[int, ...], padded: bool
) -> bool:
    """Whether all windows count as many places: none hangs over, and padding counts or is none."""
    height, width, down, across = sizes
    ends = [2 * (n - 1) + k - 2 * p for n, k, p in zip((down, across), reach, pads, strict=True)]
    return (padded or not any(pads)) and ends[0] <= height and ends[1] <= width
