"""Layer and root-mean-square normalization over the last axes, with a residual sum before it.

A program has one or several whole rows in registers; every element is read once.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.approx import inverse_root, widened
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv, power, warps

WIDEST = 16384
TOGETHER = {2: 2048, 4: 2048}
"""Elements of a program that has several rows, by the bytes of one."""
PER_THREAD = {2: 32, 4: 16}


@Compiled
@triton.jit
def _normalize(
    y,
    total,
    mean,
    inverse,
    x,
    skip,
    extra,
    scale,
    shift,
    rows,
    columns,
    epsilon,
    CENTRED: tl.constexpr,
    SKIP: tl.constexpr,
    EXTRA: tl.constexpr,
    SHIFT: tl.constexpr,
    WHOLE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    part = 1.0 / columns
    column = tl.arange(0, C)
    fits = column < columns
    row = tl.program_id(0) * R + tl.arange(0, R)
    mask = (row < rows)[:, None] & fits[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    value = widened(tl.load(x + at, mask, 0.0))
    if SKIP:
        value += widened(tl.load(skip + at, mask, 0.0))
    if EXTRA:
        value += widened(tl.load(extra + column, fits, 0.0))[None, :]
    weight = widened(tl.load(scale + column, fits, 0.0))[None, :]
    if SKIP:
        tl.store(total + at, value.to(total.dtype.element_ty), mask)
    if CENTRED:
        middle = tl.sum(value, 1) * part
        tl.store(mean + row, middle, row < rows)
        value -= middle[:, None]
        if not WHOLE:
            value = tl.where(mask, value, 0.0)
    inv = inverse_root(tl.sum(value * value, 1) * part + epsilon)
    tl.store(inverse + row, inv, row < rows)
    result = value * inv[:, None] * weight
    if SHIFT:
        result += widened(tl.load(shift + column, fits, 0.0))[None, :]
    tl.store(y + at, result.to(y.dtype.element_ty), mask)


@dataclasses.dataclass
class Normalized:
    """Output, statistics of each row in float32, and the sum that was normalized."""

    y: Tensor
    mean: Tensor
    inverse: Tensor
    total: Tensor


def takes(scale: Tensor, *others: Tensor) -> bool:
    """Whether rows as long as the scale are short enough, and what applies to all lies densely."""
    dense = all(t.is_contiguous() and t.is_floating_point() for t in (scale, *others))
    return dense and 0 < scale.numel() <= WIDEST


def normalize(
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    epsilon: float,
    *,
    centred: bool,
    skip: Tensor | None = None,
    extra: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Normalized:
    """y = (s - mean) * inv * scale + shift of s = x + skip + extra; no mean unless centred."""
    columns = scale.numel()
    rows = x.numel() // columns
    y = torch.empty_like(x, dtype=dtype or x.dtype)
    total = x if skip is None else torch.empty_like(x)
    inverse = torch.empty(rows, dtype=torch.float32, device=x.device)
    mean = torch.empty_like(inverse) if centred else inverse
    width, size = power(columns), x.dtype.itemsize
    together = max(1, TOGETHER[size] // width)
    _normalize[(cdiv(rows, together),)](
        y,
        total,
        mean,
        inverse,
        x,
        x if skip is None else skip,
        x if extra is None else extra,
        scale,
        scale if shift is None else shift,
        rows,
        columns,
        epsilon,
        centred,
        skip is not None,
        extra is not None,
        shift is not None,
        columns == width,
        together,
        width,
        num_warps=warps(width * together, PER_THREAD[size]),
    )
    return Normalized(y, mean, inverse, total)
