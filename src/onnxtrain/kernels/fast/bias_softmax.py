"""Softmax of rows with a bias, dropped where it is computed, and the gradient of both, in one pass.

Elements lie in groups, of which each has its words of Philox, as those of a dropout alone have.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import dropout
from onnxtrain.kernels.fast.common.approx import reciprocal, widened
from onnxtrain.kernels.fast.common.axis import LONGEST_ROW_OF_ONE
from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.launch import cdiv, power, spread, warps
from onnxtrain.kernels.fast.dropout import as_bytes, kept_of
from onnxtrain.kernels.fast.softmax_steps import finite, raised

TOGETHER = 1024
"""Elements of a program with several rows."""
PER_THREAD, OF_A_GRADIENT = 16, {2: 16, 4: 4}
"""Elements of a thread, and by the bytes of one in the gradient of a dropout."""
ALONE = {2: (1024, 32), 4: (512, 16)}
"""Both without a dropout, by the bytes of an element."""


@triton.jit
def _places(rows, columns, R: tl.constexpr, K: tl.constexpr, G: tl.constexpr):
    """Rows, groups of a row, where the elements lie, which of them there are, and columns."""
    columns = columns // G * G  # so that the compiler knows it
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None, None]
    group = tl.arange(0, K)[None, :, None]
    column = group * G + tl.arange(0, G)[None, None, :]
    return row, group, row * columns + column, (row < rows) & (column < columns), column


@Early
@triton.jit
def _rows(
    y,
    x,
    bias,
    rows,
    columns,
    repeats,
    INNER: tl.constexpr,
    ONE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    G: tl.constexpr,
):
    """ONE: all rows of a program have the same bias."""
    wait()
    columns = columns // G * G  # so that the compiler knows it
    first = tl.program_id(0) * R
    below, column = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    there = (first + below < rows) & (column < columns)
    at = first.to(tl.int64) * columns + (below * columns + column)
    value = widened(tl.load(x + at, there, float("-inf")))
    if ONE:
        bias_row = first // repeats + below * 0
    else:
        bias_row = (first + below) // repeats if INNER else (first + below) % repeats
    value += widened(tl.load(bias + bias_row.to(tl.int64) * columns + column, there, 0.0))
    value = raised(value, finite(tl.max(value, 1))[:, None])
    value *= reciprocal(tl.sum(value, 1))[:, None]
    tl.store(y + at, value.to(y.dtype.element_ty), there)


@Early
@triton.jit(do_not_specialize=["seed", "limit"])
def _dropped(
    y,
    mask,
    soft,
    x,
    bias,
    seeds,
    seed: tl.uint64,
    limit: tl.uint32,
    rows,
    columns,
    repeats,
    scale,
    INNER: tl.constexpr,
    DRAWN: tl.constexpr,
    HALF: tl.constexpr,
    ROUNDS: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
    G: tl.constexpr,
):
    wait()
    row, group, at, there, column = _places(rows, columns, R, K, G)
    columns = columns // G * G
    bias_row = row // repeats if INNER else row % repeats
    value = tl.load(x + at, there, float("-inf")).to(tl.float32)
    value += tl.load(bias + bias_row * columns + column, there, 0.0).to(tl.float32)
    top = finite(tl.max(tl.max(value, 2), 1))[:, None, None]
    value = raised(value, top)
    value *= reciprocal(tl.sum(tl.sum(value, 2), 1))[:, None, None]
    tl.store(soft + at, value.to(soft.dtype.element_ty), there)
    if DRAWN:
        seed = seed.to(tl.uint64) + tl.load(seeds).to(tl.uint64)
    counter = tl.reshape(row * (columns // G) + group, (R * K,))
    kept = kept_of(seed, counter, limit.to(tl.uint32), HALF, ROUNDS, G)
    kept = tl.reshape(kept, (R, K, G))
    tl.store(as_bytes(mask) + at, kept.to(tl.uint8), there)
    tl.store(y + at, tl.where(kept, value * scale, 0.0).to(y.dtype.element_ty), there)


@Early
@triton.jit
def _backward(
    dx, dy, mask, y, rows, columns, scale, R: tl.constexpr, K: tl.constexpr, G: tl.constexpr
):
    wait()
    _, _, at, there, _ = _places(rows, columns, R, K, G)
    kept = tl.load(as_bytes(mask) + at, there, 0)
    given = tl.load(dy + at, there, 0.0).to(tl.float32)
    given = tl.where(kept != 0, given * scale, 0.0)
    out = tl.load(y + at, there, 0.0).to(tl.float32)
    total = tl.sum(tl.sum(given * out, 2), 1)[:, None, None]
    tl.store(dx + at, (out * (given - total)).to(dx.dtype.element_ty), there)


def takes(x: Tensor) -> bool:
    """Whether the rows of a matrix are short enough, and of whole groups."""
    return 0 < x.shape[1] <= LONGEST_ROW_OF_ONE and x.shape[1] % (16 // x.dtype.itemsize) == 0


def bias_softmax(x: Tensor, bias: Tensor, inner: bool) -> Tensor:
    """Softmax of the rows of x + bias, each bias row being for rows in a row, or for every n-th."""
    y, (rows, columns), count = torch.empty_like(x), x.shape, bias.shape[0]
    repeats = rows // count if inner else count
    elements, per_thread = ALONE[x.dtype.itemsize]
    width = power(columns)
    together = spread(max(1, elements // width), rows)
    one = inner and repeats % together == 0
    _rows[(cdiv(rows, together),)](
        y,
        x,
        bias,
        rows,
        columns,
        repeats,
        inner,
        one,
        together,
        width,
        16 // x.dtype.itemsize,
        num_warps=warps(width * together, per_thread),
    )
    return y


def bias_softmax_dropout(
    x: Tensor, bias: Tensor, inner: bool, rate: float, seed: int | None, rng: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, s; s / (1 - rate) where a mask is true, else 0; the mask; s."""
    y, soft = torch.empty_like(x), torch.empty_like(x)
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    drawn = seed is None
    key, seeds = (seed, mask) if seed is not None else dropout.next_seed(x, rng)
    half = drawn and dropout.HALVES and x.dtype.itemsize == 2 and 1 / 256 <= rate <= 255 / 256
    (rows, columns), count = x.shape, bias.shape[0]
    together, groups, group, threads = _plan(x)
    _dropped[(cdiv(rows, together),)](
        y,
        mask,
        soft,
        x,
        bias,
        seeds,
        key,
        dropout.limit_of(1 - rate, half),
        rows,
        columns,
        rows // count if inner else count,
        1 / (1 - rate),
        inner,
        drawn,
        half,
        dropout.ROUNDS if drawn else 10,
        together,
        groups,
        group,
        num_warps=threads,
    )
    return y, mask, soft


def softmax_dropout_grad(dy: Tensor, mask: Tensor, y: Tensor, rate: float) -> Tensor:
    """dX = y·(d - Σ y·d) along rows, with d = dY / (1 - rate) where the mask is true, else 0."""
    dx, (rows, columns) = torch.empty_like(dy), dy.shape
    together, groups, group, _ = _plan(dy)
    threads = warps(together * groups * group, OF_A_GRADIENT[dy.dtype.itemsize])
    _backward[(cdiv(rows, together),)](
        dx,
        dy,
        mask,
        y,
        rows,
        columns,
        1 / (1 - rate),
        together,
        groups,
        group,
        num_warps=threads,
    )
    return dx


def _plan(x: Tensor) -> tuple[int, int, int, int]:
    """Rows of a program, groups of a row, elements of a group, and warps."""
    group, width = 16 // x.dtype.itemsize, power(x.shape[1])
    together = max(1, TOGETHER // width)
    return together, max(1, width // group), group, warps(width * together, PER_THREAD)
