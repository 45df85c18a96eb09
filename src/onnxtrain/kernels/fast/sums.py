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

from onnxtrain.kernels.fast.columns import WRITING, in_whole_strips, strips_of
from onnxtrain.kernels.fast.common.approx import rounded, widened
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.early import announce
from onnxtrain.kernels.fast.common.shares import MEMORY

MOST_PARTS = 4


@Compiled
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
        total += widened(value)
    announce()
    tl.store(shares + tl.program_id(1) * columns + there, tl.sum(total, 0), fits)


@Compiled
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
        # in pieces of as many elements as a thread has of dy: in others all is computed twice
        piece: tl.constexpr = 128 // dy.dtype.element_ty.primitive_bitwidth
        kept = tl.load(mask + tl.max_contiguous(at, (1, piece)), inside, 0)
        value = widened(tl.load(dy + at, inside, 0.0)) * scale
        value = rounded(tl.where(kept != 0, value, 0.0), dx.dtype.element_ty)
        tl.store(dx + at, value, inside)
        total += widened(value)
    announce()
    tl.store(shares + tl.program_id(1) * columns + column, tl.sum(total, 0), fits)


def takes(parts: Sequence[Tensor]) -> bool:
    """Whether there are few enough parts, all of one shape and type."""
    first = parts[0]
    same = all(p.shape == first.shape and p.dtype == first.dtype for p in parts)
    return 1 < len(parts) <= MOST_PARTS and same


def side_by_side(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Parts of one shape side by side along the last axis, and the sums over all other axes."""
    first, plan = parts[0], WRITING[parts[0].dtype.itemsize]
    width, columns = first.shape[-1], len(parts) * first.shape[-1]
    out = first.new_empty((*first.shape[:-1], columns))
    rows, device = first.numel() // width, first.device
    strips = strips_of(plan, rows, width, first.dtype.itemsize, device, len(parts))
    sums, shares = first.new_empty(columns), MEMORY.of((strips.numbers,), device)
    _side_by_side[strips.grid](
        shares,
        out,
        *parts,
        *[first] * (MOST_PARTS - len(parts)),
        rows,
        width,
        columns,
        strips.grid[0] // len(parts),
        *strips.cut,
        **strips.options,
    )
    strips.sums.add(sums, shares)
    return out, sums


def drop_grad(dy: Tensor, mask: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """dx = dy / (1 - rate) where the mask is true, else 0; and its sums over all but the last."""
    columns, plan = dy.shape[-1], WRITING[dy.dtype.itemsize]
    rows, device = dy.numel() // columns, dy.device
    in_one = in_whole_strips(plan, rows, columns, dy.dtype.itemsize, device)
    strips = strips_of(plan, rows, columns, dy.dtype.itemsize, device, in_one=in_one)
    dx, sums = torch.empty_like(dy), dy.new_empty(columns)
    shares, kept = MEMORY.of((strips.numbers,), device), mask.view(torch.uint8)
    values = (1 / (1 - rate), rows // in_one, columns * in_one, *strips.cut)
    _dropped[strips.grid](shares, dx, dy, kept, *values, **strips.options)
    strips.sums.add(sums, shares)
    return dx, sums
