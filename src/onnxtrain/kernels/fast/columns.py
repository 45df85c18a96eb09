"""Sums of columns, always in the same order, alone or of a gradient that is made on the way.

Each program goes down a strip of columns through a part of the rows; a second launch adds the
parts up. The gradient of Gelu is what linear layers before it need with its sums, their bias.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.approx import rounded
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv, multiprocessors, places, power, store_sums, strip
from onnxtrain.kernels.fast.pointwise import gelu_slope


@dataclasses.dataclass(frozen=True)
class Launch:
    """Bytes of a strip, rows at once, warps, programs on a multiprocessor, stages."""

    strip: int
    rows: int
    warps: int
    programs: int
    stages: int


LAUNCHES = {2: Launch(256, 32, 4, 8, 3), 4: Launch(256, 16, 4, 8, 2)}
"""By the bytes of an element."""


@Compiled
@triton.jit
def _strips(
    parts,
    dx,
    dy,
    x,
    bias,
    rows,
    columns,
    KIND: tl.constexpr,
    BIAS: tl.constexpr,
    STAGES: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    column, fits = strip(columns, C)
    total = tl.zeros((R, C), tl.float32)
    if BIAS:
        shift = tl.load(bias + column, fits, 0.0).to(tl.float32)[None, :]
    for first in tl.range(tl.program_id(1) * R, rows, tl.num_programs(1) * R, num_stages=STAGES):
        at, mask = places(first, rows, columns, column, fits, R)
        value = tl.load(dy + at, mask, 0.0).to(tl.float32)
        if KIND != "":
            data = tl.load(x + at, mask, 0.0).to(tl.float32)
            if BIAS:
                data += shift
            exact: tl.constexpr = dx.dtype.element_ty == tl.float32
            result = rounded(value * gelu_slope(data, KIND, exact), dx.dtype.element_ty)
            tl.store(dx + at, result, mask)
            # the sum is that of the gradient as it is stored
            value = result.to(tl.float32)
        total += value
    store_sums(parts, 0, total, columns, column, fits)


@Compiled
@triton.jit
def _add_parts(out, parts, count, columns, P: tl.constexpr, C: tl.constexpr):
    column = tl.program_id(0) * C + tl.arange(0, C)[None, :]
    total = tl.zeros((P, C), tl.float32)
    for first in range(0, count, P):
        part = first + tl.arange(0, P)[:, None]
        mask = (part < count) & (column < columns)
        total += tl.load(parts + part * columns + column, mask, 0.0)
    value = tl.sum(total, 0)[None, :].to(out.dtype.element_ty)
    tl.store(out + column, value, column < columns)


def column_sums(x: Tensor, columns: int, dtype: torch.dtype | None = None) -> Tensor:
    """Σ over rows of x as a matrix with so many columns, in its type or another."""
    return _sums(x, x, x, None, "", columns, dtype or x.dtype)


def gelu_grad_and_sums(
    dy: Tensor, x: Tensor, bias: Tensor | None, approximate: str
) -> tuple[Tensor, Tensor]:
    """dx = dy * Gelu'(x + bias), and its sums over all axes but the last."""
    dx = torch.empty_like(dy)
    return dx, _sums(dy, dx, x, bias, approximate, x.shape[-1], dy.dtype)


def _sums(
    dy: Tensor,
    dx: Tensor,
    x: Tensor,
    bias: Tensor | None,
    kind: str,
    columns: int,
    dtype: torch.dtype,
) -> Tensor:
    rows, plan = dy.numel() // columns, LAUNCHES[dy.dtype.itemsize]
    width = min(plan.strip // dy.dtype.itemsize, power(columns))
    across = cdiv(columns, width)
    wanted = multiprocessors(dy.device) * plan.programs
    count = max(1, min(wanted // across, cdiv(rows, plan.rows)))
    parts = torch.empty((count, columns), dtype=torch.float32, device=dy.device)
    _strips[(across, count)](
        parts,
        dx,
        dy,
        x,
        x if bias is None else bias,
        rows,
        columns,
        kind,
        bias is not None,
        plan.stages,
        plan.rows,
        width,
        num_warps=plan.warps,
    )
    out = torch.empty(columns, dtype=dtype, device=dy.device)
    _add_parts[(cdiv(columns, 32),)](out, parts, count, columns, 64, 32, num_warps=4)
    return out
