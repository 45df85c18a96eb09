"""Gradient of layer and root-mean-square normalization over the last axes.

Each program goes through many rows and keeps its share of the weights' gradients in registers;
a second launch adds the shares up in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.launch import multiprocessors, power, warps

WIDEST = 16384
PER_THREAD = 16
TOGETHER = 1024
RESIDENT = 16


@triton.jit
def _grad(
    dx,
    shares,
    dy,
    x,
    scale,
    mean,
    inverse,
    rows,
    columns,
    CENTRED: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    column = tl.arange(0, C)
    fits = column < columns
    weight = tl.load(scale + column, fits, 0.0).to(tl.float32)[None, :]
    dscale = tl.zeros((R, C), tl.float32)
    dbias = tl.zeros((R, C), tl.float32)
    for first in range(tl.program_id(0) * R, rows, tl.num_programs(0) * R):
        row = first + tl.arange(0, R)
        mask = (row < rows)[:, None] & fits[None, :]
        at = row.to(tl.int64)[:, None] * columns + column[None, :]
        data = tl.load(x + at, mask, 0.0)
        grad = tl.load(dy + at, mask, 0.0).to(tl.float32)
        inv = tl.load(inverse + row, row < rows, 0.0).to(tl.float32)[:, None]
        # where data is masked the gradient is 0, and nothing else enters the sums
        if CENTRED:
            centre = tl.load(mean + row, row < rows, 0.0).to(tl.float32)[:, None]
            normal = data.to(tl.float32) * inv - centre * inv
            dbias += grad
        else:
            normal = data.to(tl.float32) * inv
        dscale += grad * normal
        inner = grad * weight
        slope = tl.sum(inner * normal, 1)[:, None] / columns * inv
        if CENTRED:
            shift = tl.sum(inner, 1)[:, None] / columns * inv
            result = inner * inv - (normal * slope + shift)
        else:
            result = inner * inv - normal * slope
        tl.store(dx + at, result.to(data.dtype), mask)
    place = tl.program_id(0) * columns + column
    tl.store(shares + place, tl.sum(dscale, 0), fits)
    if CENTRED:
        tl.store(shares + tl.num_programs(0) * columns + place, tl.sum(dbias, 0), fits)


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
    dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor | None, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """dx, and [dscale, dbias] (only dscale without a mean), for rows as long as the scale."""
    columns = scale.numel()
    rows = x.numel() // columns
    width = power(columns)
    together = max(1, TOGETHER // width)
    threads = warps(width * together, PER_THREAD)
    resident = multiprocessors(x.device) * max(1, RESIDENT // threads)
    count = min(triton.cdiv(rows, together), resident)
    kinds = 1 if mean is None else 2
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
        rows,
        columns,
        mean is not None,
        together,
        width,
        num_warps=threads,
    )
    sums = torch.empty((kinds, columns), dtype=scale.dtype, device=x.device)
    _add_shares[(triton.cdiv(columns, 32), kinds)](
        sums, shares, count, columns, 64, 32, num_warps=4
    )
    return dx, sums
