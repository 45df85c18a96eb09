"""Gradients of Softmax and LogSoftmax along any axis, each element read once.

A short row (or several) is one program's; a long one is cut into parts whose programs exchange
their partial sums.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.approx import LOG2_E, two_to
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

TOGETHER = {2: 2048, 4: 2048}
"""Elements of a program with several rows, by the bytes of one."""
PER_THREAD = {2: 8, 4: 8}
LONGEST_ROW_OF_ONE = 16384
PART = {2: 8192, 4: 4096}
"""Elements of a part of a long row, and of a tile (below), by the bytes of one."""
PART_WARPS = {2: 8, 4: 8}
LONGEST_ROW = 1 << 20
TILE = {2: 16384, 4: 8192}
TILE_PER_THREAD = {2: 64, 4: 64}


@triton.jit
def _term(dy, y, LOG: tl.constexpr):
    """What is summed along the axis."""
    return dy if LOG else dy * y


@triton.jit
def _result(dy, y, total, LOG: tl.constexpr):
    return dy - two_to(y * LOG2_E) * total if LOG else y * (dy - total)


@Compiled
@triton.jit
def _rows(dx, dy, y, rows, columns, LOG: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    column = tl.arange(0, C)[None, :]
    mask = (row < rows) & (column < columns)
    at = row * columns + column
    dy_in = tl.load(dy + at, mask, 0.0)
    y_in = tl.load(y + at, mask, 0.0)
    wide, out = dy_in.to(tl.float32), y_in.to(tl.float32)
    total = tl.sum(_term(wide, out, LOG), 1)[:, None]
    tl.store(dx + at, _result(wide, out, total, LOG).to(dy_in.dtype), mask)


@Compiled
@triton.jit
def _parts(
    dx,
    dy,
    y,
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
    dy_in = tl.load(dy + at, mask, 0.0)
    y_in = tl.load(y + at, mask, 0.0)
    own = tl.sum(_term(dy_in.to(tl.float32), y_in.to(tl.float32), LOG), 0)
    tl.atomic_xchg(partial + row * PARTS + part, own)
    meet(counters, row, PARTS)
    dy_in, y_in = kept_narrow(dy_in, PACKED), kept_narrow(y_in, PACKED)
    other = tl.arange(0, P)
    total = tl.sum(tl.load(partial + row * PARTS + other, other < PARTS, 0.0, volatile=True), 0)
    result = _result(dy_in.to(tl.float32), y_in.to(tl.float32), total, LOG)
    tl.store(dx + at, result.to(dy_in.dtype), mask)


@Compiled
@triton.jit
def _columns(
    dx,
    dy,
    y,
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
    dy_in = tl.load(dy + at, mask, 0.0)
    y_in = tl.load(y + at, mask, 0.0)
    total = tl.sum(_term(dy_in.to(tl.float32), y_in.to(tl.float32), LOG), 0)
    if PARTS > 1:
        lane = tl.arange(0, W)
        tl.store(partial + (tile * PARTS + part) * W + lane, total)
        meet(counters, tile, PARTS)
        dy_in, y_in = kept_narrow(dy_in, PACKED), kept_narrow(y_in, PACKED)
        other = tl.arange(0, P)[:, None]
        seen = partial + (tile * PARTS + other) * W + lane[None, :]
        total = tl.sum(tl.load(seen, other < PARTS, 0.0, volatile=True), 0)
    result = _result(dy_in.to(tl.float32), y_in.to(tl.float32), total[None, :], LOG)
    tl.store(dx + at, result.to(dy_in.dtype), mask)


def takes(y: Tensor, axis: int) -> bool:
    """Whether the shape is one that these kernels serve."""
    size = y.shape[axis]
    return 0 < size <= LONGEST_ROW and -y.ndim <= axis < y.ndim


def softmax_grad(dy: Tensor, y: Tensor, axis: int, *, log: bool) -> Tensor:
    """dX = y·(dY - Σ y·dY), or dY - e^y·Σ dY for the logarithm."""
    axis %= y.ndim
    size, inner = y.shape[axis], math.prod(y.shape[axis + 1 :])
    dx = torch.empty_like(dy)
    if inner == 1:
        _last_axis(dx, dy, y, size, log)
    else:
        _other_axis(dx, dy, y, size, inner, log)
    return dx


def _last_axis(dx: Tensor, dy: Tensor, y: Tensor, size: int, log: bool) -> None:
    rows, width = y.numel() // size, power(size)
    if part_of(size, LONGEST_ROW_OF_ONE) == width:
        together = max(1, TOGETHER[y.dtype.itemsize] // width)
        grid = (cdiv(rows, together),)
        threads = warps(width * together, PER_THREAD[y.dtype.itemsize])
        _rows[grid](dx, dy, y, rows, size, log, together, width, num_warps=threads)
        return
    part, threads = PART[y.dtype.itemsize], PART_WARPS[y.dtype.itemsize]
    parts = cdiv(size, part)
    counters, partial = meeting(rows, parts, y.device)
    _parts[(rows * parts,)](
        dx,
        dy,
        y,
        counters,
        partial,
        size,
        log,
        packed(y),
        parts,
        power(parts),
        part,
        num_warps=threads,
    )


def _other_axis(dx: Tensor, dy: Tensor, y: Tensor, size: int, inner: int, log: bool) -> None:
    wide = min(power(inner), 128 // y.dtype.itemsize)
    tall = part_of(size, max(TILE[y.dtype.itemsize] // wide, 1))
    parts = cdiv(size, tall)
    tiles = y.numel() // (size * inner) * cdiv(inner, wide)
    counters, partial = meeting(tiles, parts * wide, y.device)
    _columns[(tiles * parts,)](
        dx,
        dy,
        y,
        counters,
        partial,
        size,
        inner,
        log,
        packed(y),
        parts,
        power(parts),
        tall,
        wide,
        num_warps=warps(tall * wide, TILE_PER_THREAD[y.dtype.itemsize]),
    )
