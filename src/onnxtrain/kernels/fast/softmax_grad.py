"""Gradients of Softmax and LogSoftmax along any axis, each element read once.

A short row (or several) is one program's; a long one is cut into parts whose programs exchange
their partial sums.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import softmax_columns, softmax_shifted
from onnxtrain.kernels.fast.common.approx import unchanged, widened
from onnxtrain.kernels.fast.common.axis import (
    LONGEST_ROW_OF_ONE,
    extent,
    one_of_few,
    parts_of,
    row_part,
    strewn,
    tile_of,
    tile_warps,
    whole_rows,
)
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.exchange import (
    board,
    collect,
    entered,
    fits,
    leave_one,
    of_row,
    turn,
)
from onnxtrain.kernels.fast.common.launch import cdiv, power, spread, warps
from onnxtrain.kernels.fast.common.parted import Parted
from onnxtrain.kernels.fast.softmax_steps import grad_of, grad_term

TOGETHER = 1024
"""Elements of a program with several rows, of long rows' parts, and tiles by the bytes of one."""
PER_THREAD = 8
OF_A_WARP, FEW_ROWS = {(128, 2): 8, (16, 4): 32}, 1 << 14
"""Rows that are one warp's, which sums them side by side, by their elements and the bytes of one;
not of so few rows that all programs of four warps run at once."""
PART = 8192
LONGEST_PART = {2: 16384, 4: 8192}
PART_WARPS = 4
PART_REGISTERS = {2: 96, 4: 168}
CLUSTER = 4
"""Programs of a cluster of which a row has several."""
LONGEST_ROW = 1 << 20
TILE = {2: 32768, 4: 16384}
TILE_PER_THREAD = {2: 64, 4: 32}
TILE_REGISTERS = 128


@Early
@triton.jit
def _rows(
    dx,
    dy,
    y,
    rows,
    columns,
    LOG: tl.constexpr,
    WHOLE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    wait()
    at, mask = whole_rows(rows, columns, WHOLE, R, C)
    dy_in = tl.load(dy + at, mask, 0.0)
    y_in = tl.load(y + at, mask, 0.0)
    wide, out = dy_in.to(tl.float32), y_in.to(tl.float32)
    total = tl.sum(grad_term(wide, out, LOG), 1)[:, None]
    tl.store(dx + at, grad_of(wide, out, total, LOG).to(dy_in.dtype), mask)


@Parted
@triton.jit
def _parts(
    dx,
    dy,
    y,
    words,
    zero,
    columns,
    LOG: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
    S: tl.constexpr,
    B: tl.constexpr,
):
    row, part, box = entered(words, PARTS, S)
    column = strewn(part, PARTS, C, B)
    mask = column < columns
    at = row * columns + column
    dy_in = tl.load(dy + at, mask, 0.0)
    y_in = tl.load(y + at, mask, 0.0)
    own = tl.sum(grad_term(widened(dy_in), widened(y_in), LOG), 0)
    one = tl.full((), 1.0, tl.float32)
    _, sums = of_row(words, box, row, part, one, own, PARTS, P, S)
    total = tl.sum(sums, 0)
    dy_in, y_in = unchanged(dy_in, zero), unchanged(y_in, zero)
    result = grad_of(widened(dy_in), widened(y_in), total, LOG)
    tl.store(dx + at, result.to(dy_in.dtype), mask)


@Compiled
@triton.jit
def _columns(
    dx,
    dy,
    y,
    words,
    zero,
    size: tl.constexpr,
    inner: tl.constexpr,
    LOG: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    W: tl.constexpr,
):
    number = turn(words) if PARTS > 1 else tl.program_id(0).to(tl.int64)
    tile, part = number // PARTS, (number % PARTS).to(tl.int32)
    across: tl.constexpr = (inner + W - 1) // W
    column = (tile % across).to(tl.int32) * W + tl.arange(0, W)[None, :]
    place = part * N + tl.arange(0, N)[:, None]
    mask = (place < size) & (column < inner)
    at = tile // across * (size * inner) + (place.to(tl.int64) * inner + column)
    dy_in = tl.load(dy + at, mask, 0.0)
    y_in = tl.load(y + at, mask, 0.0)
    total = tl.sum(grad_term(widened(dy_in), widened(y_in), LOG), 0)
    if PARTS > 1:
        lane = tl.arange(0, W)
        leave_one(words + 1 + number * W + lane, total)
        other = tl.arange(0, P)[:, None]
        there = other + lane[None, :] * 0 < PARTS
        _, sums = collect(words + 1 + (tile * PARTS + other) * W + lane[None, :], there)
        total = tl.sum(tl.where(there, sums, 0.0), 0)
    dy_in, y_in = unchanged(dy_in, zero), unchanged(y_in, zero)
    result = grad_of(widened(dy_in), widened(y_in), total[None, :], LOG)
    tl.store(dx + at, result.to(dy_in.dtype), mask)


def takes(y: Tensor, axis: int) -> bool:
    """Whether the shape is one that these kernels serve."""
    if axis in (-1, y.ndim - 1) and 0 < y.shape[-1] <= LONGEST_ROW_OF_ONE:
        return True
    if not -y.ndim <= axis < y.ndim or not 0 < y.shape[axis] <= LONGEST_ROW:
        return False
    (size, inner), of = extent(y, axis), y.dtype.itemsize
    if inner == 1:
        cut = parts_of(size, PART, LONGEST_PART[of], (PART, CLUSTER), y.device)
        return cut.at_once or fits(cut.number, y, 3)
    if softmax_columns.cut_of(y, size, inner) is None:
        tall, _ = tile_of(y, size, inner, TILE[of])
        if not fits(cdiv(size, tall), y, 1):
            return False
    return one_of_few(size, inner)


def softmax_grad(dy: Tensor, y: Tensor, axis: int, *, log: bool) -> Tensor:
    """dX = y·(dY - Σ y·dY), or dY - e^y·Σ dY for the logarithm."""
    size, inner = extent(y, axis)
    dx = torch.empty_like(dy)
    if inner == 1:
        _last_axis(dx, dy, y, size, log)
    else:
        _other_axis(dx, dy, y, size, inner, log)
    return dx


@functools.cache
def _rows_together(rows: int, size: int, of: int) -> tuple[int, int, int]:
    """Elements of a row of one program, rows of one, and its warps; of so many bytes each."""
    part = row_part(size, PART)
    if rows > FEW_ROWS and (part, of) in OF_A_WARP:
        return part, OF_A_WARP[part, of], 1
    together = spread(max(1, TOGETHER // part), rows)
    return part, together, warps(part * together, PER_THREAD)


def _last_axis(dx: Tensor, dy: Tensor, y: Tensor, size: int, log: bool) -> None:
    rows = y.numel() // size
    part, together, threads = _rows_together(rows, size, y.dtype.itemsize)
    if part >= size and softmax_shifted.shifted(size):
        softmax_shifted.short_rows((dx, dy, y), size, log)
        return
    if part >= size:
        grid = (cdiv(rows, together),)
        _rows[grid](dx, dy, y, rows, size, log, part == size, together, part, num_warps=threads)
        return
    _long_rows(dx, dy, y, size, log)


def _long_rows(dx: Tensor, dy: Tensor, y: Tensor, size: int, log: bool) -> None:
    of = y.dtype.itemsize
    cut = parts_of(size, PART, LONGEST_PART[of], (PART, CLUSTER), y.device)
    threads, registers = cut.size // PART * PART_WARPS, PART_REGISTERS[of]
    if softmax_shifted.shifted(size):
        softmax_shifted.long_rows((dx, dy, y), size, cut, threads, registers, log)
        return
    _parts.launch((dx, dy, y), size, cut, log, threads=threads, registers=registers)


def _other_axis(dx: Tensor, dy: Tensor, y: Tensor, size: int, inner: int, log: bool) -> None:
    cut = softmax_columns.cut_of(y, size, inner)
    if cut is not None:
        softmax_columns.softmax_grad(dx, dy, y, size, inner, cut, log)
        return
    of = y.dtype.itemsize
    tall, wide = tile_of(y, size, inner, TILE[of])
    parts = cdiv(size, tall)
    tiles = y.numel() // (size * inner) * cdiv(inner, wide)
    _columns[(tiles * parts,)](
        dx,
        dy,
        y,
        board(tiles * parts * wide, y.device) if parts > 1 else y,
        0,
        size,
        inner,
        log,
        parts,
        power(parts),
        tall,
        wide,
        num_warps=tile_warps(tall * wide, TILE[of], TILE_PER_THREAD[of]),
        maxnreg=TILE_REGISTERS,
    )
