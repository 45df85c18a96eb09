"""Softmax along rows that begin anywhere, and its gradient: in groups of 16 bytes all the same.

Groups count from the last whole one before the row. The first and the last, of which the row has
only a part, are read element by element. A short row (or several) is one program's; of a long one
the ends are its first program's.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import product, unchanged, widened
from onnxtrain.kernels.fast.common.axis import Parts, strewn
from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.exchange import entered, of_row
from onnxtrain.kernels.fast.common.held import ends_of
from onnxtrain.kernels.fast.common.launch import cdiv, power, spread, warps
from onnxtrain.kernels.fast.common.parted import Parted
from onnxtrain.kernels.fast.softmax_steps import (
    all_joined,
    finite,
    grad_of,
    grad_term,
    not_kept,
    raised,
    result_of,
    result_of_held,
)

SHORTEST = 5
"""Elements of the shortest row that is taken."""
KNOWN = 16
"""Rows of a multiple of so many elements begin at whole groups, and the compiler knows it."""
NARROW = 128
"""Elements up to which groups are smaller if these have no ends, or less of them."""
SMALLER = {16: 2, 64: 4}
"""Elements of such a group in rows of an odd length, up to so many."""
TOGETHER, FEWER = 1024, 512
"""Elements of a program with several rows; in float32 where these are narrower than ``NARROW``."""
GROUPS, MOST = 4, 16
"""Groups of a thread; elements of a thread in gradients of several rows, at most."""
WIDE = {2: {8192: (4, 72), 16384: (4, 96)}, 4: {16384: (16, 64)}}
"""Warps and registers for long rows, as for parts of longer ones."""


@triton.jit
def _rows(rows, columns, ENDS: tl.constexpr, R: tl.constexpr, K: tl.constexpr, W: tl.constexpr):
    """Where this program's groups begin; places and which there are, of whole groups and of ends.

    Only where its first row begins takes 64 bits.
    """
    first = tl.program_id(0).to(tl.int64) * R
    base = first * columns // W * W
    below = tl.arange(0, R)
    there = (first + below < rows)[:, None]
    start = (first * columns - base).to(tl.int32) + below * columns
    begin = (start // W * W)[:, None]
    lead, group = start[:, None] - begin, tl.arange(0, K)[None, :] * W
    whole = there & (group >= lead) & (group + W <= lead + columns)
    at = (begin + group)[:, :, None] + tl.arange(0, W)[None, None, :]
    end, cut = at, whole
    if ENDS:
        groups = (lead + columns + W - 1) // W
        end, cut = ends_of((lead, columns, groups, 0), groups, W)
        end, cut = begin + end, there & cut
    return base, at, whole[:, :, None], end, cut


@triton.jit
def _term(dy, y, LOG: tl.constexpr):
    """What a gradient sums; lanes that share a short row leave the sum in one place."""
    return dy if LOG else product(dy, y)


@triton.jit
def _row_sums(tile):
    return tl.sum(tl.sum(tile, 2), 1)


@Early
@triton.jit
def _forward_rows(
    y,
    x,
    zero,
    rows,
    columns,
    LOG: tl.constexpr,
    ENDS: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
    W: tl.constexpr,
):
    wait()
    base, at, whole, end, cut = _rows(rows, columns, ENDS, R, K, W)
    x += base
    y += base
    held = tl.load(x + at, whole, float("-inf"))
    top = tl.max(tl.max(held, 2), 1).to(tl.float32)
    if ENDS:
        ends = tl.load(x + end, cut, float("-inf")).to(tl.float32)
        top = tl.maximum(top, tl.max(ends, 1))
    top = finite(top)
    held = not_kept(held, zero)
    total = _row_sums(raised(widened(held), top[:, None, None]))
    if ENDS:
        total += tl.sum(raised(ends, top[:, None]), 1)
    held = unchanged(held, zero)
    result = result_of_held(held, top[:, None, None], total[:, None, None], LOG)
    tl.store(y + at, result.to(y.dtype.element_ty), whole)
    if ENDS:
        result = result_of(ends, top[:, None], total[:, None], LOG)
        tl.store(y + end, result.to(y.dtype.element_ty), cut)


@Early
@triton.jit
def _backward_rows(
    dx,
    dy,
    y,
    zero,
    rows,
    columns,
    LOG: tl.constexpr,
    ENDS: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
    W: tl.constexpr,
):
    wait()
    base, at, whole, end, cut = _rows(rows, columns, ENDS, R, K, W)
    dx += base
    dy += base
    y += base
    dy_in, y_in = tl.load(dy + at, whole, 0.0), tl.load(y + at, whole, 0.0)
    total = _row_sums(_term(widened(dy_in), widened(y_in), LOG))
    if ENDS:
        dy_end = tl.load(dy + end, cut, 0.0).to(tl.float32)
        y_end = tl.load(y + end, cut, 0.0).to(tl.float32)
        total += tl.sum(_term(dy_end, y_end, LOG), 1)
    dy_in, y_in = unchanged(dy_in, zero), unchanged(y_in, zero)
    result = grad_of(widened(dy_in), widened(y_in), total[:, None, None], LOG)
    tl.store(dx + at, result.to(dx.dtype.element_ty), whole)
    if ENDS:
        result = grad_of(dy_end, y_end, total[:, None], LOG)
        tl.store(dx + end, result.to(dx.dtype.element_ty), cut)


@triton.jit
def _part(
    words,
    columns,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    S: tl.constexpr,
    B: tl.constexpr,
    W: tl.constexpr,
):
    """Row, part and box of this program; where its row's groups begin; and the rest as above."""
    row, part, box = entered(words, PARTS, S)
    start = row * columns
    base = start // W * W
    lead = (start - base).to(tl.int32)
    group = strewn(part, PARTS, C // W, B // W) * W
    whole = (group >= lead) & (group + W <= lead + columns)
    at = group[:, None] + tl.arange(0, W)[None, :]
    groups = (lead + columns + W - 1) // W
    end, cut = ends_of((lead, columns, groups, 0), tl.where(part == 0, groups, 0), W)
    return row, part, box, base, at, whole[:, None], end, cut


@triton.jit
def _sum(tile):
    return tl.sum(tl.sum(tile, 1), 0)


@Parted
@triton.jit
def _forward(
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
    W: tl.constexpr,
):
    row, part, box, base, at, whole, end, cut = _part(words, columns, PARTS, C, S, B, W)
    x += base
    y += base
    held = tl.load(x + at, whole, float("-inf"))
    ends = tl.load(x + end, cut, float("-inf")).to(tl.float32)
    top = tl.max(tl.max(held, 1), 0).to(tl.float32)
    top = tl.maximum(top, tl.max(ends, 0))
    held = not_kept(held, zero)
    total = _sum(raised(widened(held), finite(top))) + tl.sum(raised(ends, finite(top)), 0)
    tops, sums = of_row(words, box, row, part, top, total, PARTS, P, S)
    top, total = all_joined(tops, sums)
    result = result_of_held(unchanged(held, zero), top, total, LOG)
    tl.store(y + at, result.to(y.dtype.element_ty), whole)
    tl.store(y + end, result_of(ends, top, total, LOG).to(y.dtype.element_ty), cut)


@Parted
@triton.jit
def _backward(
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
    W: tl.constexpr,
):
    row, part, box, base, at, whole, end, cut = _part(words, columns, PARTS, C, S, B, W)
    dx += base
    dy += base
    y += base
    dy_in, y_in = tl.load(dy + at, whole, 0.0), tl.load(y + at, whole, 0.0)
    dy_end = tl.load(dy + end, cut, 0.0).to(tl.float32)
    y_end = tl.load(y + end, cut, 0.0).to(tl.float32)
    own = _sum(grad_term(widened(dy_in), widened(y_in), LOG))
    own += tl.sum(grad_term(dy_end, y_end, LOG), 0)
    one = tl.full((), 1.0, tl.float32)
    _, sums = of_row(words, box, row, part, one, own, PARTS, P, S)
    total = tl.sum(sums, 0)
    dy_in, y_in = unchanged(dy_in, zero), unchanged(y_in, zero)
    result = grad_of(widened(dy_in), widened(y_in), total, LOG)
    tl.store(dx + at, result.to(dx.dtype.element_ty), whole)
    tl.store(dx + end, grad_of(dy_end, y_end, total, LOG).to(dx.dtype.element_ty), cut)


def shifted(size: int) -> bool:
    """Whether rows of so many elements are taken: the compiler does not know where they begin.

    It does if they are as long as a tile.
    """
    return size >= SHORTEST and size % KNOWN != 0 and size != power(size)


class Launch(NamedTuple):
    """Rows of a program, groups of a row, elements of a group; warps; registers of a thread."""

    together: int
    groups: int
    width: int
    warps: int
    most: int | None


def _width(size: int, of: int) -> int:
    """Elements of a group."""
    widest, even = 16 // of, size & -size
    if size > NARROW:
        return widest
    if even > 1:
        return min(even, widest)
    return next((width for most, width in SMALLER.items() if size <= most), widest)


@functools.lru_cache(1024)
def _launch_of(rows: int, size: int, of: int, gradient: bool) -> Launch:
    """How rows of so many elements of so many bytes are taken."""
    width = _width(size, of)
    groups = power(cdiv(size, width))
    part = groups * width
    if not gradient and part in WIDE[of]:
        return Launch(1, groups, width, *WIDE[of][part])
    all_rows = FEWER if of == 4 and part < NARROW else TOGETHER
    together = spread(max(1, all_rows // part), rows)
    per_thread = GROUPS * width
    if gradient and together > 1:
        per_thread = min(per_thread, MOST)
    return Launch(together, groups, width, warps(part * together, per_thread), None)


def short_rows(tensors: tuple[Tensor, ...], size: int, log: bool) -> None:
    """Write the softmax of rows, of (y, x), or its gradient, of (dx, dy, y)."""
    kernel = _forward_rows if len(tensors) == 2 else _backward_rows
    rows, of = tensors[0].numel() // size, tensors[0].dtype.itemsize
    together, groups, width, threads, most = _launch_of(rows, size, of, len(tensors) == 3)
    cut = (size % width != 0, together, groups, width)
    options = {"num_warps": threads, "maxnreg": most}
    kernel[(cdiv(rows, together),)](*tensors, 0, rows, size, log, *cut, **options)


def long_rows(
    tensors: tuple[Tensor, ...], size: int, cut: Parts, threads: int, most: int, log: bool
) -> None:
    """The same of rows that are cut into parts."""
    kernel, group = _forward if len(tensors) == 2 else _backward, 16 // tensors[0].dtype.itemsize
    kernel.launch(tensors, size, cut, log, group, threads=threads, registers=most)
