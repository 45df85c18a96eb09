"""Halves of features turned by angles: one pass over memory, however the heads lie in it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.approx import widened
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv, power

TOGETHER = 1024
"""Elements of a half that a program has."""
WIDEST = 2048
WARPS = 4


@Compiled
@triton.jit
def _rotate(
    out, x, cos, sin, rows, middle, last,
    o0, o1, o2, x0, x1, x2, c0, c1, c2, s0, s1, s2,
    HALF: tl.constexpr,
    INVERSE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    i0, i1, i2 = row // (middle * last), row // last % middle, row % last
    column = tl.arange(0, C)[None, :]
    there = (row < rows)[:, None] & (column < HALF)
    left = (i0 * x0 + i1 * x1 + i2 * x2)[:, None] + column
    a = widened(tl.load(x + left, there, 0.0))
    b = widened(tl.load(x + left + HALF, there, 0.0))
    turn = (i0 * c0 + i1 * c1 + i2 * c2)[:, None] + column
    cos_a = widened(tl.load(cos + turn, there, 0.0))
    cos_b = widened(tl.load(cos + turn + HALF, there, 0.0))
    turn = (i0 * s0 + i1 * s1 + i2 * s2)[:, None] + column
    sin_a = widened(tl.load(sin + turn, there, 0.0))
    sin_b = widened(tl.load(sin + turn + HALF, there, 0.0))
    if INVERSE:
        first, second = a * cos_a + b * sin_b, b * cos_b - a * sin_a
    else:
        first, second = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    to = (i0 * o0 + i1 * o1 + i2 * o2)[:, None] + column
    tl.store(out + to, first.to(out.dtype.element_ty), there)
    tl.store(out + to + HALF, second.to(out.dtype.element_ty), there)


def takes(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether features lie side by side, and how the other axes lie can be said by strides."""
    wide = 2 <= x.shape[-1] <= 2 * WIDEST and x.ndim <= 4
    return wide and all(t.shape[-1] == x.shape[-1] and t.stride(-1) == 1 for t in (x, cos, sin))


def rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """x·cos + turned(x)·sin, or what undoes it; the result lies in memory as x does."""
    out = torch.empty_like(x)
    given = [out, x, *(t.expand(x.shape) for t in (cos, sin))]
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
    _rotate[(cdiv(rows, together),)](
        *(out, x, cos, sin, rows, *sizes[1:], *strides, half, inverse, together, columns),
        num_warps=WARPS,
    )
    return out
