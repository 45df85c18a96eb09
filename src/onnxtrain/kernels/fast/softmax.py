"""Softmax and LogSoftmax along any axis, each element read once.

A short row (or several) is one program's; a long one is cut into parts whose programs exchange
their largest values and sums.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.approx import LOG2_E, reciprocal, two_to
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import (
    cdiv,
    kept_narrow,
    meet,
    meeting,
    packed,
    part_of,
    power,
    turn,
    warps,
)

TOGETHER = {2: 4096, 4: 2048}
"""Elements of a program with several rows, by the bytes of one; of long rows' parts, and tiles."""
PER_THREAD = {2: 16, 4: 16}
LONGEST_ROW_OF_ONE = 16384
PART = {2: 16384, 4: 8192}
PART_WARPS = {2: 16, 4: 16}
LONGEST_ROW = 1 << 20
TILE = {2: 16384, 4: 8192}
TILE_PER_THREAD = {2: 64, 4: 32}


@triton.jit
def _raised(x, top):
    return two_to((x - top) * LOG2_E)


@triton.jit
def _finite(top):
    """A largest value that can be subtracted from what is not larger."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def _result(x, top, total, LOG: tl.constexpr):
    return x - top - tl.log(total) if LOG else _raised(x, top) * reciprocal(total)


@Compiled
@triton.jit
def _rows(y, x, rows, columns, LOG: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    column = tl.arange(0, C)[None, :]
    mask = (row < rows) & (column < columns)
    at = row * columns + column
    value = tl.load(x + at, mask, float("-inf")).to(tl.float32)
    top = _finite(tl.max(value, 1))[:, None]
    total = tl.sum(_raised(value, top), 1)[:, None]
    tl.store(y + at, _result(value, top, total, LOG).to(y.dtype.element_ty), mask)


@triton.jit
def _joined(tops, sums):
    """The largest value of all parts, and the sum of all, along the first axis."""
    top = _finite(tl.max(tops, 0))
    return top, tl.sum(sums * _raised(tops, top), 0)


@Compiled
@triton.jit
def _parts(
    y,
    x,
    counters,
    partial,
    columns,
    LOG: tl.constexpr,
    PACKED: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
):
    number = turn(counters)
    row, part = number // PARTS, number % PARTS
    column = part * C + tl.arange(0, C)
    mask = column < columns
    at = row.to(tl.int64) * columns + column
    held = tl.load(x + at, mask, float("-inf"))
    value = held.to(tl.float32)
    top = tl.max(value, 0)
    own = partial + number * 2
    tl.atomic_xchg(own, top)
    tl.atomic_xchg(own + 1, tl.sum(_raised(value, _finite(top)), 0))
    meet(counters, row, PARTS)
    held = kept_narrow(held, PACKED)
    other = tl.arange(0, P)
    seen = partial + (row * PARTS + other) * 2
    tops = tl.load(seen, other < PARTS, float("-inf"), volatile=True)
    top, total = _joined(tops, tl.load(seen + 1, other < PARTS, 0.0, volatile=True))
    result = _result(held.to(tl.float32), top, total, LOG)
    tl.store(y + at, result.to(y.dtype.element_ty), mask)


@Compiled
@triton.jit
def _columns(
    y,
    x,
    counters,
    partial,
    size,
    inner,
    LOG: tl.constexpr,
    PACKED: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    W: tl.constexpr,
):
    number = turn(counters) if PARTS > 1 else tl.program_id(0)
    tile, part = number // PARTS, number % PARTS
    across = tl.cdiv(inner, W)
    column = tile % across * W + tl.arange(0, W)[None, :]
    place = part * N + tl.arange(0, N)[:, None]
    mask = (place < size) & (column < inner)
    at = ((tile // across).to(tl.int64) * size + place) * inner + column
    held = tl.load(x + at, mask, float("-inf"))
    value = held.to(tl.float32)
    top = tl.max(value, 0)
    total = tl.sum(_raised(value, _finite(top)[None, :]), 0)
    if PARTS > 1:
        lane = tl.arange(0, W)
        own = partial + (tile * PARTS + part) * 2 * W + lane
        tl.store(own, top)
        tl.store(own + W, total)
        meet(counters, tile, PARTS)
        held = kept_narrow(held, PACKED)
        other = tl.arange(0, P)[:, None]
        seen = partial + (tile * PARTS + other) * 2 * W + lane[None, :]
        tops = tl.load(seen, other < PARTS, float("-inf"), volatile=True)
        top, total = _joined(tops, tl.load(seen + W, other < PARTS, 0.0, volatile=True))
    else:
        top = _finite(top)
    result = _result(held.to(tl.float32), top[None, :], total[None, :], LOG)
    tl.store(y + at, result.to(y.dtype.element_ty), mask)


def takes(x: Tensor, axis: int) -> bool:
    """Whether the shape is one that these kernels serve."""
    return -x.ndim <= axis < x.ndim and 0 < x.shape[axis] <= LONGEST_ROW


def softmax(x: Tensor, axis: int, *, log: bool) -> Tensor:
    """y = eˣ / Σ eˣ along an axis, or x - ln Σ eˣ."""
    axis %= x.ndim
    size, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    y = torch.empty_like(x)
    if inner == 1:
        _last_axis(y, x, size, log)
    else:
        _other_axis(y, x, size, inner, log)
    return y


def _last_axis(y: Tensor, x: Tensor, size: int, log: bool) -> None:
    rows, width, of = x.numel() // size, power(size), x.dtype.itemsize
    if part_of(size, LONGEST_ROW_OF_ONE) == width:
        together = max(1, TOGETHER[of] // width)
        threads = warps(width * together, PER_THREAD[of])
        _rows[(cdiv(rows, together),)](y, x, rows, size, log, together, width, num_warps=threads)
        return
    part = PART[of]
    parts = cdiv(size, part)
    counters, partial = meeting(rows, 2 * parts, x.device)
    _parts[(rows * parts,)](
        y,
        x,
        counters,
        partial,
        size,
        log,
        packed(x),
        parts,
        power(parts),
        part,
        num_warps=PART_WARPS[of],
    )


def _other_axis(y: Tensor, x: Tensor, size: int, inner: int, log: bool) -> None:
    wide = min(power(inner), 128 // x.dtype.itemsize)
    tall = part_of(size, max(TILE[x.dtype.itemsize] // wide, 1))
    parts = cdiv(size, tall)
    tiles = x.numel() // (size * inner) * cdiv(inner, wide)
    counters, partial = meeting(tiles, parts * 2 * wide, x.device)
    _columns[(tiles * parts,)](
        y,
        x,
        counters,
        partial,
        size,
        inner,
        log,
        packed(x),
        parts,
        power(parts),
        tall,
        wide,
        num_warps=warps(tall * wide, TILE_PER_THREAD[x.dtype.itemsize]),
    )
