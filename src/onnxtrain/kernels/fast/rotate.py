"""Pairs of features turned by angles: one pass over memory, however the heads lie in it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import widened
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv, power

TOGETHER = 1024
"""Elements of a half that a program has."""
WIDEST = 2048
WARPS = 4


@triton.jit
def _pairs(
    start,
    at,
    there,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """First and second of the pairs in rows: their halves, or neighbours, read at once."""
    if INTERLEAVED:
        column = tl.arange(0, 2 * C)[None, :]
        mask = there[:, None] & (column < 2 * HALF)
        both = widened(tl.load(start + (at[:, None] + column), mask, 0.0))
        a, b = tl.split(tl.reshape(both, (R, C, 2)))
    else:
        column = tl.arange(0, C)[None, :]
        mask = there[:, None] & (column < HALF)
        a = widened(tl.load(start + (at[:, None] + column), mask, 0.0))
        b = widened(tl.load(start + HALF + (at[:, None] + column), mask, 0.0))
    return a, b


@triton.jit
def _angles(
    start,
    at,
    there,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SHARED: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Those of the first and second of pairs, which may share them."""
    if SHARED:
        column = tl.arange(0, C)[None, :]
        mask = there[:, None] & (column < HALF)
        a = widened(tl.load(start + (at[:, None] + column), mask, 0.0))
        b = a
    else:
        a, b = _pairs(start, at, there, HALF, INTERLEAVED, R, C)
    return a, b


@Compiled
@triton.jit
def _rotate(
    out, x, cos, sin, rows, middle, last,
    o0, o1, o2, x0, x1, x2, c0, c1, c2, s0, s1, s2,
    HALF: tl.constexpr,
    INVERSE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SHARED: tl.constexpr,
    WIDE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    # a division of 64 bits, which few tensors need, is a long sequence of instructions
    first = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    row = first * R + tl.arange(0, R)
    there = row < rows
    outer = row // last  # all of the axes behind the first may be too many for 32 bits
    i0 = (outer // middle).to(tl.int64)
    i1 = (outer % middle).to(tl.int64)
    i2 = (row % last).to(tl.int64)
    a, b = _pairs(x, i0 * x0 + i1 * x1 + i2 * x2, there, HALF, INTERLEAVED, R, C)
    at = i0 * c0 + i1 * c1 + i2 * c2
    cos_a, cos_b = _angles(cos, at, there, HALF, INTERLEAVED, SHARED, R, C)
    at = i0 * s0 + i1 * s1 + i2 * s2
    sin_a, sin_b = _angles(sin, at, there, HALF, INTERLEAVED, SHARED, R, C)
    if INVERSE:
        y, z = a * cos_a + b * sin_b, b * cos_b - a * sin_a
    else:
        y, z = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    to = out + (i0 * o0 + i1 * o1 + i2 * o2)[:, None]
    if INTERLEAVED:
        column = tl.arange(0, 2 * C)[None, :]
        both = tl.reshape(tl.join(y, z), (R, 2 * C)).to(out.dtype.element_ty)
        tl.store(to + column, both, there[:, None] & (column < 2 * HALF))
    else:
        column = tl.arange(0, C)[None, :]
        mask = there[:, None] & (column < HALF)
        tl.store(to + column, y.to(out.dtype.element_ty), mask)
        tl.store(to + HALF + column, z.to(out.dtype.element_ty), mask)


def takes(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether features lie side by side, and how the other axes lie can be said by strides."""
    size, each = x.shape[-1], cos.shape[-1]
    if not 2 <= size <= 2 * WIDEST or x.ndim > 4 or each not in (size, size // 2):
        return False
    return sin.shape[-1] == each and all(t.stride(-1) == 1 for t in (x, cos, sin))


def rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool, interleaved: bool = False) -> Tensor:
    """x·cos + turned(x)·sin, or what undoes it; the result lies in memory as x does."""
    out = torch.empty_like(x)
    if out.stride(-1) != 1:  # torch may have turned axes of an x whose rows overlap
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    shared = cos.shape[-1] < x.shape[-1]
    given = [out, x, *(t.expand(*x.shape[:-1], t.shape[-1]) for t in (cos, sin))]
    for _ in range(4 - x.ndim):
        given = [t.unsqueeze(0) for t in given]
    strides_of_out = given[0].stride()
    order = sorted(range(3), key=lambda axis: -strides_of_out[axis])
    sizes = [given[0].shape[axis] for axis in order]
    strides = [t.stride(axis) for t in given for axis in order]
    half = x.shape[-1] // 2
    columns = power(half)
    together = max(1, TOGETHER // columns)
    rows = sizes[0] * sizes[1] * sizes[2]
    wide = rows + together >= 1 << 31
    forms = half, inverse, interleaved, shared, wide, together, columns
    _rotate[(cdiv(rows, together),)](
        *(out, x, cos, sin, rows, *sizes[1:], *strides, *forms), num_warps=WARPS
    )
    return out
