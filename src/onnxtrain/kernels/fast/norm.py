"""Layer and root-mean-square normalization over the last axes, with a residual sum before it.

A program has one or several whole rows in registers; every element is read once. Only wide rows in
float32 are read twice, by blocks, the second time from the cache: on an H200 that takes 4 % less.
Of few rows a warp or two have one, and no lane is idle; of many as well, where that is faster.
Kernels are compiled for the length of the rows: it is that of a weight, and a model has few; so are
they for epsilon.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import inverse_root, product, widened
from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.launch import cdiv, power, warps
from onnxtrain.kernels.fast.common.rows import LANES, VECTOR, nothing

WIDEST = 16384
TOGETHER = 2048
"""Elements of a program that has several rows."""
PER_THREAD = 32
FEW, BY_WARPS = 1 << 20, 1024
"""Elements that all programs have at once: the longest way of one of them is what they take; and
the longest row that a warp has."""
OF_TWO = 512
"""Elements of a row beyond which two warps share it, if its mean is taken before its squares."""
TWICE = 4096
"""Elements from which on a row in float32 is read twice, without a sum before it."""
BLOCK, BLOCK_WARPS = 2048, 16
NARROW = tl.constexpr(2 * LANES)
"""Rows of so many elements are one element of each thread, where a program has several rows."""


@triton.jit
def _of_columns(vector, column, fits):
    """What all rows have in common, which stays in the cache while these go through it."""
    return widened(tl.load(vector + column, fits, 0.0, eviction_policy="evict_last"))[None, :]


@Early
@triton.jit
def _normalize(
    y,
    x,
    scale,
    inverse,
    mean,
    shift,
    skip,
    total,
    extra,
    rows,
    columns: tl.constexpr,
    epsilon: tl.constexpr,
    CENTRED: tl.constexpr,
    SKIP: tl.constexpr,
    EXTRA: tl.constexpr,
    SHIFT: tl.constexpr,
    WHOLE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    wait()
    part = 1.0 / columns
    column = tl.arange(0, C)
    fits = column < columns
    first, below = tl.program_id(0) * R, tl.arange(0, R)
    row = first + below
    mask = (row < rows)[:, None] & fits[None, :]
    at = first.to(tl.int64) * columns + (below[:, None] * columns + column[None, :])
    value = widened(tl.load(x + at, mask, 0.0))
    if SKIP:
        value += widened(tl.load(skip + at, mask, 0.0))
    if EXTRA:
        value += _of_columns(extra, column, fits)
    weight = _of_columns(scale, column, fits)
    if SKIP:
        tl.store(total + at, value.to(total.dtype.element_ty), mask)
    if CENTRED:
        middle = tl.sum(value, 1) * part
        tl.store(mean + row, middle, row < rows)
        value -= middle[:, None]
        if not WHOLE:
            value = tl.where(mask, value, 0.0)
    # the lanes of a narrow row leave its sum in one place
    square = product(value, value) if C <= NARROW else value * value
    inv = inverse_root(tl.sum(square, 1) * part + epsilon)
    tl.store(inverse + row, inv, row < rows)
    result = value * inv[:, None] * weight
    if SHIFT:
        result += _of_columns(shift, column, fits)
    tl.store(y + at, result.to(y.dtype.element_ty), mask)


@Early
@triton.jit
def _normalize_by_warps(
    y,
    x,
    scale,
    inverse,
    mean,
    shift,
    skip,
    total,
    extra,
    columns: tl.constexpr,
    epsilon: tl.constexpr,
    CENTRED: tl.constexpr,
    SKIP: tl.constexpr,
    EXTRA: tl.constexpr,
    SHIFT: tl.constexpr,
    WIDE: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
):
    """A row, in chunks of all lanes; all that it needs is on its way before anything is known."""
    wait()
    row, lane = tl.program_id(0), tl.arange(0, C)
    part, begin = 1.0 / columns, (row.to(tl.int64) if WIDE else row) * columns
    values, weights, offsets = nothing(), nothing(), nothing()
    middle = tl.zeros((C,), tl.float32)
    for k in tl.static_range(K):
        column = k * C + lane
        value = widened(tl.load(x + begin + column, column < columns, 0.0))
        if SKIP:
            value += widened(tl.load(skip + begin + column, column < columns, 0.0))
        if EXTRA:
            value += widened(tl.load(extra + column, column < columns, 0.0))
        values += (value,)
        middle += value
    for k in tl.static_range(K):
        column = k * C + lane
        weights += (widened(tl.load(scale + column, column < columns, 0.0)),)
        if SHIFT:
            offsets += (widened(tl.load(shift + column, column < columns, 0.0)),)
    if SKIP:
        for k in tl.static_range(K):
            place = total + begin + k * C + lane
            tl.store(place, values[k].to(total.dtype.element_ty), k * C + lane < columns)
    centre = 0.0
    if CENTRED:
        centre = tl.sum(middle, 0) * part
        tl.store(mean + row, centre)
    square = tl.zeros((C,), tl.float32)
    for k in tl.static_range(K):
        apart = values[k] - centre
        if k * C + C > columns:
            apart = tl.where(k * C + lane < columns, apart, 0.0)
        square += apart * apart
    inv = inverse_root(tl.sum(square, 0) * part + epsilon)
    tl.store(inverse + row, inv)
    for k in tl.static_range(K):
        result = (values[k] - centre) * inv * weights[k]
        if SHIFT:
            result += offsets[k]
        place = y + begin + k * C + lane
        tl.store(place, result.to(y.dtype.element_ty), k * C + lane < columns)


@Early
@triton.jit
def _normalize_twice(
    y,
    x,
    scale,
    inverse,
    mean,
    shift,
    columns: tl.constexpr,
    epsilon: tl.constexpr,
    CENTRED: tl.constexpr,
    SHIFT: tl.constexpr,
    C: tl.constexpr,
    B: tl.constexpr,
):
    wait()
    row, lane = tl.program_id(0), tl.arange(0, B)
    begin = row.to(tl.int64) * columns
    middle = tl.zeros((B,), tl.float32)
    square = tl.zeros((B,), tl.float32)
    for number in tl.static_range(C // B):
        column = number * B + lane
        fits = column < columns
        value = tl.load(x + begin + column, fits, 0.0, eviction_policy="evict_last")
        if CENTRED:  # mean and squared deviations of each lane's values so far
            apart = tl.where(fits, value - middle, 0.0)
            middle += apart * (1.0 / (number + 1))
            square += apart * (value - middle)
        else:
            square += value * value
    if CENTRED:
        count = ((columns - lane + B - 1) // B).to(tl.float32)
        centre = tl.sum(middle * count, 0) / columns
        tl.store(mean + row, centre)
        apart = middle - centre
        square += apart * apart * count
    else:
        centre = 0.0
    inv = inverse_root(tl.sum(square, 0) / columns + epsilon)
    tl.store(inverse + row, inv)
    for number in tl.static_range(C // B):
        column = number * B + lane
        fits = column < columns
        value = tl.load(x + begin + column, fits, 0.0, eviction_policy="evict_first")
        weight = widened(tl.load(scale + column, fits, 0.0))
        result = (value - centre) * inv * weight
        if SHIFT:
            result += widened(tl.load(shift + column, fits, 0.0))
        tl.store(y + begin + column, result.to(y.dtype.element_ty), fits)


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
    """y = (s - mean) * inv * scale + shift of s = x + skip + extra; no mean unless centred.

    There is nothing extra without a skip connection.
    """
    columns = scale.numel()
    rows = x.numel() // columns
    y = torch.empty_like(x, dtype=dtype or x.dtype)
    total = x if skip is None else torch.empty_like(x)
    inverse = torch.empty(rows, dtype=torch.float32, device=x.device)
    mean = torch.empty_like(inverse) if centred else inverse
    width, size = power(columns), x.dtype.itemsize
    flags = (centred, skip is not None, extra is not None, shift is not None)
    given: list[Tensor | None] = [y, x, scale, inverse]
    if skip is not None:
        given += [mean, scale if shift is None else shift, skip, total, extra]
    elif shift is not None:
        given += [mean, shift, None, None, None]
    else:
        given += [mean if centred else None, None, None, None, None]
    if size == 4 and width >= TWICE and skip is None:
        blocks = (centred, shift is not None, width, BLOCK)
        _normalize_twice[(rows,)](*given[:6], columns, epsilon, *blocks, num_warps=BLOCK_WARPS)
    elif _is_for_warps(rows, columns, *flags[:2]):
        lanes = min(width, LANES * VECTOR // size)
        chunks = x.numel() + width >= 1 << 31, lanes, cdiv(columns, lanes)
        count = 2 if centred and columns > OF_TWO else 1
        _normalize_by_warps[(rows,)](*given, columns, epsilon, *flags, *chunks, num_warps=count)
    else:
        together = max(1, TOGETHER // width)
        block = columns == width, together, width
        count = warps(width * together, PER_THREAD)
        launch = _normalize[(cdiv(rows, together),)]
        launch(*given, rows, columns, epsilon, *flags, *block, num_warps=count)
    return Normalized(y, mean, inverse, total)


def _is_for_warps(rows: int, columns: int, centred: bool, skips: bool) -> bool:
    """Whether a warp has a row: of few, and where others would have idle lanes and little to do."""
    width = power(columns)
    idle = columns < width and not centred and not skips
    return width <= BY_WARPS and (rows * width <= FEW or idle)
