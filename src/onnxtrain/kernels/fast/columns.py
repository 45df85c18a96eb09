"""Sums of columns, always in the same order, alone or of a gradient that is made on the way.

Each program goes down a strip of columns through a part of the rows; those that finish last add
the parts up. The gradient of Gelu is what linear layers before it need with its sums, their bias.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.approx import rounded, widened
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv, multiprocessors, places, power, store_sums, strip
from onnxtrain.kernels.fast.pointwise import gelu_slope
from onnxtrain.kernels.fast.shares import STRIP, Shares, add_shares


@dataclasses.dataclass(frozen=True)
class Launch:
    """Bytes of a strip, rows at once, warps, programs on a multiprocessor, stages."""

    strip: int
    rows: int
    warps: int
    programs: int
    stages: int


LAUNCHES = {2: Launch(128, 32, 4, 8, 3), 4: Launch(256, 16, 4, 8, 3)}
"""By the bytes of an element."""
WRITING = {2: Launch(256, 16, 4, 9, 3), 4: Launch(256, 16, 4, 8, 2)}
"""The same for kernels that write as much as they read."""


class Strips(NamedTuple):
    """How a matrix is cut: columns of a strip, strips side by side, parts of the rows."""

    width: int
    across: int
    parts: int

    @classmethod
    def of(cls, like: Tensor, rows: int, columns: int, plan: Launch, matrices: int = 1) -> Strips:
        """Strips of several matrices of one shape."""
        width = min(plan.strip // like.dtype.itemsize, power(columns))
        across = cdiv(columns, width)
        wanted = multiprocessors(like.device) * plan.programs
        return cls(width, across, max(1, min(wanted // (across * matrices), cdiv(rows, plan.rows))))


@Compiled
@triton.jit
def _strips(
    out,
    parts,
    counters,
    dx,
    dy,
    x,
    bias,
    rows,
    columns,
    helpers,
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
        value = widened(tl.load(dy + at, mask, 0.0))
        if KIND != "":
            data = widened(tl.load(x + at, mask, 0.0))
            if BIAS:
                data += shift
            exact: tl.constexpr = dx.dtype.element_ty == tl.float32
            result = rounded(value * gelu_slope(data, KIND, exact), dx.dtype.element_ty)
            tl.store(dx + at, result, mask)
            # the sum is that of the gradient as it is stored
            value = widened(result)
        total += value
    store_sums(parts, 0, total, columns, column, fits)
    add_shares(out, parts, counters, tl.num_programs(1), columns, columns, 1, helpers, 64, STRIP)


def column_sums(x: Tensor, columns: int, dtype: torch.dtype | None = None) -> Tensor:
    """Σ over rows of x as a matrix with so many columns, in its type or another."""
    plan = LAUNCHES[x.dtype.itemsize]
    return _sums(x, x, x, None, "", columns, dtype or x.dtype, plan)


def gelu_grad_and_sums(
    dy: Tensor, x: Tensor, bias: Tensor | None, approximate: str
) -> tuple[Tensor, Tensor]:
    """dx = dy * Gelu'(x + bias), and its sums over all axes but the last."""
    dx, plan = torch.empty_like(dy), WRITING[dy.dtype.itemsize]
    return dx, _sums(dy, dx, x, bias, approximate, x.shape[-1], dy.dtype, plan)


def _sums(
    dy: Tensor,
    dx: Tensor,
    x: Tensor,
    bias: Tensor | None,
    kind: str,
    columns: int,
    dtype: torch.dtype,
    plan: Launch,
) -> Tensor:
    rows = dy.numel() // columns
    strips = Strips.of(dy, rows, columns, plan)
    out = torch.empty(columns, dtype=dtype, device=dy.device)
    shares, counters, helpers = Shares.of(out, strips.parts, strips.across * strips.parts)
    _strips[(strips.across, strips.parts)](
        out,
        shares,
        counters,
        dx,
        dy,
        x,
        x if bias is None else bias,
        rows,
        columns,
        helpers,
        kind,
        bias is not None,
        plan.stages,
        plan.rows,
        strips.width,
        num_warps=plan.warps,
    )
    return out
