"""Gradient of layer and root-mean-square normalization over the last axes.

Each program goes through many rows and keeps its share of the weights' gradients in registers;
a second launch adds the shares up in a fixed order.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.approx import rounded
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv, multiprocessors, power, row_sums, warps

WIDEST = 16384


@dataclasses.dataclass(frozen=True)
class Launch:
    """Elements a program takes at once, elements of a thread, warps on a multiprocessor, stages."""

    together: int
    per_thread: int
    resident: int
    stages: int


LAUNCHES = {2: Launch(2048, 16, 16, 3), 4: Launch(1024, 8, 16, 3)}
"""By the bytes of an element."""


@Compiled
@triton.jit
def _grad(
    dx,
    shares,
    dy,
    x,
    scale,
    mean,
    inverse,
    residual,
    rows,
    columns,
    CENTRED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SUMMED: tl.constexpr,
    PAIRS: tl.constexpr,
    STAGES: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    column = tl.arange(0, C)
    fits = column < columns
    weight = tl.load(scale + column, fits, 0.0).to(tl.float32)[None, :]
    dscale = tl.zeros((R, C), tl.float32)
    dbias = tl.zeros((R, C), tl.float32)
    total = tl.zeros((R, C), tl.float32)
    # loads of later rows are under way while this one is summed
    for first in tl.range(tl.program_id(0) * R, rows, tl.num_programs(0) * R, num_stages=STAGES):
        row = first + tl.arange(0, R)
        mask = (row < rows)[:, None] & fits[None, :]
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        data = tl.load(x + at, mask, 0.0)
        grad = tl.load(dy + at, mask, 0.0).to(tl.float32)
        inv = tl.load(inverse + row, row < rows, 0.0).to(tl.float32)[:, None]
        # where data is masked the gradient is 0, and nothing else enters the sums
        if CENTRED:
            centre = tl.load(mean + row, row < rows, 0.0).to(tl.float32)[:, None]
            normal = (data.to(tl.float32) - centre) * inv
            dbias += grad
        else:
            normal = data.to(tl.float32) * inv
        dscale += grad * normal
        inner = grad * weight
        if CENTRED:
            slope, shift = row_sums(inner * normal, inner, PAIRS)
            slope = slope[:, None] / columns
            result = (inner - (normal * slope + shift[:, None] / columns)) * inv
        else:
            slope = tl.sum(inner * normal, 1)[:, None] / columns
            result = (inner - normal * slope) * inv
        if RESIDUAL:
            result += tl.load(residual + at, mask, 0.0).to(tl.float32)
        stored = rounded(result, dx.dtype.element_ty)
        tl.store(dx + at, stored, mask)
        if SUMMED:
            total += stored.to(tl.float32)
    place = tl.program_id(0) * columns + column
    tl.store(shares + place, tl.sum(dscale, 0), fits)
    if CENTRED:
        tl.store(shares + tl.num_programs(0) * columns + place, tl.sum(dbias, 0), fits)
    if SUMMED:
        last = 2 if CENTRED else 1
        tl.store(shares + last * tl.num_programs(0) * columns + place, tl.sum(total, 0), fits)


@Compiled
@triton.jit
def _add_shares(out, shares, count, columns, P: tl.constexpr, C: tl.constexpr):
    column = tl.program_id(0) * C + tl.arange(0, C)[None, :]
    base = shares + tl.program_id(1) * count * columns
    total = tl.zeros((P, C), tl.float32)
    for first in range(0, count, P):
        share = first + tl.arange(0, P)[:, None]
        mask = (share < count) & (column < columns)
        total += tl.load(base + share * columns + column, mask, 0.0)
    place = column + tl.program_id(1) * columns
    value = tl.sum(total, 0)[None, :].to(out.dtype.element_ty)
    tl.store(out + place, value, column < columns)


def takes(scale: Tensor, *statistics: Tensor) -> bool:
    """Whether rows are short enough, and scale and statistics lie as these kernels read them."""
    return scale.numel() <= WIDEST and all(t.is_contiguous() for t in (scale, *statistics))


def norm_grad(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    mean: Tensor | None,
    inverse: Tensor,
    residual: Tensor | None = None,
    summed: bool = False,
) -> tuple[Tensor, Tensor]:
    """dx (+ residual), and [dscale, dbias] (only dscale without a mean).

    Rows are as long as the scale. The residual is the gradient that reaches x on another way.
    If ``summed``, the sums of what is written over all rows come last.
    """
    columns = scale.numel()
    rows = x.numel() // columns
    width, plan = power(columns), LAUNCHES[x.dtype.itemsize]
    together = max(1, plan.together // width)
    threads = warps(width * together, plan.per_thread)
    resident = multiprocessors(x.device) * max(1, plan.resident // threads)
    count = min(cdiv(rows, together), resident)
    kinds = (1 if mean is None else 2) + summed
    shares = torch.empty((kinds, count, columns), dtype=torch.float32, device=x.device)
    dx = torch.empty_like(x)
    _grad[(count,)](
        dx,
        shares,
        dy,
        x,
        scale,
        inverse if mean is None else mean,
        inverse,
        x if residual is None else residual,
        rows,
        columns,
        mean is not None,
        residual is not None,
        summed,
        not interpreted(),
        plan.stages,
        together,
        width,
        num_warps=threads,
    )
    sums = torch.empty((kinds, columns), dtype=scale.dtype, device=x.device)
    _add_shares[(cdiv(columns, 32), kinds)](sums, shares, count, columns, 64, 32, num_warps=4)
    return dx, sums
