"""Softmax along rows that begin anywhere, and its gradient: in groups of 16 bytes all the same.

Groups count from the last whole one before the row. The first and the last, of which the row has
only a part, are read element by element by the row's first program.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.approx import unchanged, widened
from onnxtrain.kernels.fast.axis import Parts, strewn
from onnxtrain.kernels.fast.cluster import InClusters
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.exchange import entered, of_row, words_for
from onnxtrain.kernels.fast.held import ends_of
from onnxtrain.kernels.fast.launch import power
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

SHORT = 512
"""Elements of rows that are left to others."""
KNOWN = 16
"""Rows of a multiple of so many elements begin at whole groups, and the compiler knows it."""


@triton.jit
def _groups(
    words,
    columns,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    S: tl.constexpr,
    B: tl.constexpr,
    W: tl.constexpr,
):
    """Row and part of this program, and its box; where groups begin; places and which there are.

    They are those of whole groups, and those of both ends.
    """
    if PARTS == 1:
        row, part, box = tl.program_id(0).to(tl.int64), 0, 0
    else:
        row, part, box = entered(words, PARTS, S)
    start = row * columns
    base = start // W * W
    lead = (start - base).to(tl.int32)
    group = strewn(part, PARTS, C // W, B // W)
    whole = (group * W >= lead) & (group * W + W <= lead + columns)
    place = group[:, None] * W + tl.arange(0, W)[None, :]
    groups = (lead + columns + W - 1) // W
    own = groups if PARTS == 1 else tl.where(part == 0, groups, 0)
    end, cut = ends_of((lead, columns, groups, 0), own, W)
    return (row, part, box), base, (place, whole[:, None]), (end, cut)


@triton.jit
def _sum(tile):
    return tl.sum(tl.sum(tile, 1), 0)


@Compiled
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
    here, base, groups, both = _groups(words, columns, PARTS, C, S, B, W)
    row, part, box = here
    at, whole = groups
    end, cut = both
    x += base
    y += base
    held = tl.load(x + at, whole, float("-inf"))
    ends = tl.load(x + end, cut, float("-inf")).to(tl.float32)
    top = tl.max(tl.max(held, 1), 0).to(tl.float32)
    top = tl.maximum(top, tl.max(ends, 0))
    held = not_kept(held, zero)
    total = _sum(raised(widened(held), finite(top))) + tl.sum(raised(ends, finite(top)), 0)
    if PARTS > 1:
        tops, sums = of_row(words, box, row, part, top, total, PARTS, P, S)
        top, total = all_joined(tops, sums)
    else:
        top = finite(top)
    result = result_of_held(unchanged(held, zero), top, total, LOG)
    tl.store(y + at, result.to(y.dtype.element_ty), whole)
    tl.store(y + end, result_of(ends, top, total, LOG).to(y.dtype.element_ty), cut)


@Compiled
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
    here, base, groups, both = _groups(words, columns, PARTS, C, S, B, W)
    row, part, box = here
    at, whole = groups
    end, cut = both
    dx += base
    dy += base
    y += base
    dy_in, y_in = tl.load(dy + at, whole, 0.0), tl.load(y + at, whole, 0.0)
    dy_end = tl.load(dy + end, cut, 0.0).to(tl.float32)
    y_end = tl.load(y + end, cut, 0.0).to(tl.float32)
    total = _sum(grad_term(widened(dy_in), widened(y_in), LOG))
    total += tl.sum(grad_term(dy_end, y_end, LOG), 0)
    if PARTS > 1:
        one = tl.full((), 1.0, tl.float32)
        _, sums = of_row(words, box, row, part, one, total, PARTS, P, S)
        total = tl.sum(sums, 0)
    dy_in, y_in = unchanged(dy_in, zero), unchanged(y_in, zero)
    result = grad_of(widened(dy_in), widened(y_in), total, LOG)
    tl.store(dx + at, result.to(dx.dtype.element_ty), whole)
    tl.store(dx + end, grad_of(dy_end, y_end, total, LOG).to(dx.dtype.element_ty), cut)


_forward_clusters = Compiled(InClusters(_forward.function, "S"))
_backward_clusters = Compiled(InClusters(_backward.function, "S"))


def shifted(size: int) -> bool:
    """Whether rows of so many elements are taken: they may begin inside a group."""
    return size > SHORT and size % KNOWN != 0


def softmax(
    y: Tensor, x: Tensor, size: int, cut: Parts, warps: int, registers: int | None, log: bool
) -> None:
    """Write the softmax of rows that are cut like this, or its logarithm."""
    launch = _forward if cut.together == 1 else _forward_clusters
    _launched(launch, (y, x), size, cut, warps, registers, log)


def softmax_grad(
    dx: Tensor,
    dy: Tensor,
    y: Tensor,
    size: int,
    cut: Parts,
    warps: int,
    registers: int | None,
    log: bool,
) -> None:
    """Write the gradient of the same."""
    launch = _backward if cut.together == 1 else _backward_clusters
    _launched(launch, (dx, dy, y), size, cut, warps, registers, log)


def _launched(
    launch: Compiled,
    tensors: tuple[Tensor, ...],
    size: int,
    cut: Parts,
    warps: int,
    registers: int | None,
    log: bool,
) -> None:
    like = tensors[0]
    rows, of = like.numel() // size, like.dtype.itemsize
    launch[(rows * cut.number // cut.together,)](
        *tensors,
        like if cut.number == 1 else words_for(rows, cut, like),
        0,
        size,
        log,
        cut.number,
        power(cut.number),
        cut.size,
        cut.together,
        cut.block(of),
        16 // of,
        num_warps=warps,
        maxnreg=registers,
    )
