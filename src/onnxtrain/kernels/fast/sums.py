"""Tensors written together with the sums of their columns, always in the same order.

Each program goes down a strip of columns through a part of the rows; a second launch adds the
parts up. What is summed are the values as they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.columns import LAUNCHES, _add_parts
from onnxtrain.kernels.fast.launch import cdiv, multiprocessors, power

MOST_PARTS = 4


@triton.jit
def _side_by_side(
    shares,
    out,
    first_part,
    second_part,
    third_part,
    fourth_part,
    rows,
    width,
    columns,
    strips,
    STAGES: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    part = tl.program_id(0) // strips
    source = first_part
    if part == 1:
        source = second_part
    if part == 2:
        source = third_part
    if part == 3:
        source = fourth_part
    column = (tl.program_id(0) % strips) * C + tl.arange(0, C)
    fits = column < width
    there = part * width + column
    total = tl.zeros((R, C), tl.float32)
    for first in tl.range(tl.program_id(1) * R, rows, tl.num_programs(1) * R, num_stages=STAGES):
        row = (first + tl.arange(0, R)).to(tl.int64)[:, None]
        mask = (row < rows) & fits[None, :]
        value = tl.load(source + row * width + column[None, :], mask, 0.0)
        tl.store(out + row * columns + there[None, :], value, mask)
        total += value.to(tl.float32)
    tl.store(shares + tl.program_id(1) * columns + there, tl.sum(total, 0), fits)


@triton.jit
def _dropped(
    shares,
    dx,
    dy,
    mask,
    scale,
    rows,
    columns,
    STAGES: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    column = tl.program_id(0) * C + tl.arange(0, C)
    fits = column < columns
    total = tl.zeros((R, C), tl.float32)
    for first in tl.range(tl.program_id(1) * R, rows, tl.num_programs(1) * R, num_stages=STAGES):
        row = (first + tl.arange(0, R)).to(tl.int64)[:, None]
        inside = (row < rows) & fits[None, :]
        at = row * columns + column[None, :]
        kept = tl.load(mask + at, inside, 0)
        value = tl.load(dy + at, inside, 0.0).to(tl.float32)
        value = tl.where(kept != 0, value * scale, 0.0).to(dx.dtype.element_ty)
        tl.store(dx + at, value, inside)
        total += value.to(tl.float32)
    tl.store(shares + tl.program_id(1) * columns + column, tl.sum(total, 0), fits)


def takes(parts: Sequence[Tensor]) -> bool:
    """Whether there are few enough parts, all of one shape and type."""
    first = parts[0]
    same = all(p.shape == first.shape and p.dtype == first.dtype for p in parts)
    return 1 < len(parts) <= MOST_PARTS and same


def side_by_side(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Parts of one shape side by side along the last axis, and the sums over all other axes."""
    first = parts[0]
    width, columns = first.shape[-1], len(parts) * first.shape[-1]
    out = first.new_empty((*first.shape[:-1], columns))
    rows = first.numel() // width
    wide, count = _strips(first, width, rows, len(parts))
    shares = torch.empty((count, columns), dtype=torch.float32, device=first.device)
    given = [*parts, *[first] * (MOST_PARTS - len(parts))]
    plan, strips = LAUNCHES[first.dtype.itemsize], cdiv(width, wide)
    _side_by_side[(strips * len(parts), count)](
        shares,
        out,
        *given,
        rows,
        width,
        columns,
        strips,
        plan.stages,
        plan.rows,
        wide,
        num_warps=plan.warps,
    )
    return out, _added(shares, first.dtype)


def drop_grad(dy: Tensor, mask: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """dx = dy / (1 - rate) where the mask is true, else 0; and its sums over all but the last."""
    columns = dy.shape[-1]
    rows = dy.numel() // columns
    wide, count = _strips(dy, columns, rows, 1)
    dx = torch.empty_like(dy)
    shares = torch.empty((count, columns), dtype=torch.float32, device=dy.device)
    plan = LAUNCHES[dy.dtype.itemsize]
    _dropped[(cdiv(columns, wide), count)](
        shares,
        dx,
        dy,
        mask.view(torch.uint8),
        1 / (1 - rate),
        rows,
        columns,
        plan.stages,
        plan.rows,
        wide,
        num_warps=plan.warps,
    )
    return dx, _added(shares, dy.dtype)


def _strips(like: Tensor, width: int, rows: int, parts: int) -> tuple[int, int]:
    """Columns of a strip, and into how many pieces the rows are cut."""
    plan = LAUNCHES[like.dtype.itemsize]
    wide = min(plan.strip // like.dtype.itemsize, power(width))
    wanted = multiprocessors(like.device) * plan.programs
    return wide, max(1, min(wanted // (cdiv(width, wide) * parts), cdiv(rows, plan.rows)))


def _added(shares: Tensor, dtype: torch.dtype) -> Tensor:
    count, columns = shares.shape
    out = torch.empty(columns, dtype=dtype, device=shares.device)
    _add_parts[(cdiv(columns, 32),)](out, shares, count, columns, 64, 32, num_warps=4)
    return out
