"""Softmax and LogSoftmax along any axis, each element read once.

A short row (or several) is one program's; a long one is cut into parts whose programs exchange
their largest values and sums.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import softmax_shifted
from onnxtrain.kernels.fast.common.approx import unchanged, widened
from onnxtrain.kernels.fast.common.axis import (
    LONGEST_ROW_OF_ONE,
    Parts,
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
    leave,
    of_row,
    turn,
)
from onnxtrain.kernels.fast.common.launch import cdiv, power, spread, warps
from onnxtrain.kernels.fast.common.parted import Parted
from onnxtrain.kernels.fast.softmax_steps import (
    all_joined,
    finite,
    not_kept,
    raised,
    result_of,
    result_of_held,
)

TOGETHER = {2: 4096, 4: 2048}
"""Elements of a program with several rows, by the bytes of one; of long rows' parts, and tiles."""
PER_THREAD = 16
SHORTEST_ROW, SHORT_ROW = 16, 128
"""Elements of rows of which a quarter and half as many go together, in float32."""
ALONE, PAIR = 1024, 2048
"""Elements of rows of which a program has one, and bytes of those of which it has two."""
PART = 8192
LONGEST_ROW = 1 << 20
TILE = 32768
TILE_PER_THREAD = 64
TILE_REGISTERS = {2: 64, 4: 128}


class Cutting(NamedTuple):
    """How long rows may be cut.

    Attributes:
        launches: Warps of a part and registers of a thread, by the length of a part.
        several: Length of a part and programs of a cluster where a row has several clusters.
    """

    launches: dict[int, tuple[int, int]]
    several: tuple[int, int]


CUTTING = {
    2: Cutting({8192: (4, 72), 16384: (4, 96), 32768: (8, 80)}, (16384, 2)),
    4: Cutting({8192: (4, 96), 16384: (8, 96)}, (8192, 2)),
}
"""By the bytes of an element."""


@Early
@triton.jit
def _rows(
    y,
    x,
    rows,
    columns,
    LOG: tl.constexpr,
    WHOLE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    wait()
    at, mask = whole_rows(rows, columns, WHOLE, R, C)
    value = tl.load(x + at, mask, float("-inf")).to(tl.float32)
    top = finite(tl.max(value, 1))[:, None]
    total = tl.sum(raised(value, top), 1)[:, None]
    tl.store(y + at, result_of(value, top, total, LOG).to(y.dtype.element_ty), mask)


@Parted
@triton.jit
def _parts(
    y,
    x,
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
    held = tl.load(x + at, mask, float("-inf"))
    top = tl.max(held, 0).to(tl.float32)
    held = not_kept(held, zero)
    total = tl.sum(raised(widened(held), finite(top)), 0)
    tops, sums = of_row(words, box, row, part, top, total, PARTS, P, S)
    top, total = all_joined(tops, sums)
    held = unchanged(held, zero)
    result = result_of_held(held, top, total, LOG)
    tl.store(y + at, result.to(y.dtype.element_ty), mask)


@Compiled
@triton.jit
def _columns(
    y,
    x,
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
    held = tl.load(x + at, mask, float("-inf"))
    top = tl.max(held, 0).to(tl.float32)
    held = not_kept(held, zero)
    total = tl.sum(raised(widened(held), finite(top)[None, :]), 0)
    if PARTS > 1:
        lane = tl.arange(0, W)
        leave(words + 1 + number * W + lane, top, total)
        other = tl.arange(0, P)[:, None]
        seen = words + 1 + (tile * PARTS + other) * W + lane[None, :]
        tops, sums = collect(seen, other + lane[None, :] * 0 < PARTS)
        top, total = all_joined(tl.where(other < PARTS, tops, float("-inf")), sums)
    else:
        top = finite(top)
    held = unchanged(held, zero)
    result = result_of_held(held, top[None, :], total[None, :], LOG)
    tl.store(y + at, result.to(y.dtype.element_ty), mask)


def takes(x: Tensor, axis: int) -> bool:
    """Whether the shape is one that these kernels serve."""
    if axis in (-1, x.ndim - 1) and 0 < x.shape[-1] <= LONGEST_ROW_OF_ONE:
        return True
    if not -x.ndim <= axis < x.ndim or not 0 < x.shape[axis] <= LONGEST_ROW:
        return False
    size, inner = extent(x, axis)
    if inner == 1:
        cut, _ = _cut(x, size)
        return cut.at_once or fits(cut.number, x, 4)
    tall, _ = tile_of(x, size, inner, TILE)
    return fits(cdiv(size, tall), x, 1) and one_of_few(size, inner)


def softmax(x: Tensor, axis: int, *, log: bool) -> Tensor:
    """y = eˣ / Σ eˣ along an axis, or x - ln Σ eˣ."""
    size, inner = extent(x, axis)
    y = torch.empty_like(x)
    if inner == 1:
        _last_axis(y, x, size, log)
    else:
        _other_axis(y, x, size, inner, log)
    return y


@functools.cache
def _rows_together(rows: int, size: int, of: int) -> tuple[int, int, int]:
    """Elements of a row of one program, rows of one, and its warps."""
    part = row_part(size, PART)
    share = 1
    if of == 4 and part <= SHORT_ROW:
        share = 4 if part <= SHORTEST_ROW else 2
    if part >= ALONE:
        together = spread(2 if part * of <= PAIR else 1, rows)
    else:
        together = spread(TOGETHER[of] // (part * share), rows)
    return part, together, warps(part * together, PER_THREAD // share)


def _last_axis(y: Tensor, x: Tensor, size: int, log: bool) -> None:
    rows, of = x.numel() // size, x.dtype.itemsize
    part, together, threads = _rows_together(rows, size, of)
    if part >= size and softmax_shifted.shifted(size):
        softmax_shifted.short_rows((y, x), size, log)
        return
    if part >= size:
        grid = (cdiv(rows, together),)
        _rows[grid](y, x, rows, size, log, part == size, together, part, num_warps=threads)
        return
    _long_rows(y, x, size, log)


def _cut(x: Tensor, size: int) -> tuple[Parts, Cutting]:
    """How a long row is cut."""
    cutting = CUTTING[x.dtype.itemsize]
    return parts_of(size, PART, max(cutting.launches), cutting.several, x.device), cutting


def _long_rows(y: Tensor, x: Tensor, size: int, log: bool) -> None:
    cut, cutting = _cut(x, size)
    threads, registers = cutting.launches[cut.size]
    if softmax_shifted.shifted(size):
        softmax_shifted.long_rows((y, x), size, cut, threads, registers, log)
        return
    _parts.launch((y, x), size, cut, log, threads=threads, registers=registers)


def _other_axis(y: Tensor, x: Tensor, size: int, inner: int, log: bool) -> None:
    of = x.dtype.itemsize
    tall, wide = tile_of(x, size, inner, TILE)
    parts = cdiv(size, tall)
    tiles = x.numel() // (size * inner) * cdiv(inner, wide)
    _columns[(tiles * parts,)](
        y,
        x,
        board(tiles * parts * wide, x.device) if parts > 1 else x,
        0,
        size,
        inner,
        log,
        parts,
        power(parts),
        tall,
        wide,
        num_warps=tile_warps(tall * wide, TILE, TILE_PER_THREAD),
        maxnreg=TILE_REGISTERS[of],
    )
