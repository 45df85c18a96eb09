"""Gradient of layer and root-mean-square normalization over the last axes.

Each program goes through many rows and keeps its share of the weights' gradients in registers; a
second launch adds the shares up in a fixed order.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.common.approx import rounded, widened
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.early import announce
from onnxtrain.kernels.fast.common.launch import row_sums, shared_memory
from onnxtrain.kernels.fast.common.rows import (
    Launch,
    Tile,
    chunk,
    nothing,
    row_numbers,
    store_share,
    vector,
    zeros,
)
from onnxtrain.kernels.fast.common.shares import MEMORY, Sums, sums_of

WIDEST = 16384
LAUNCHES = {
    2: {WIDEST: Launch(16, 4, 16, 3)},
    4: {2048: Launch(8, 4, 16, 3), 4095: Launch(16, 4, 16, 3), WIDEST: Launch(8, 16, 16, 3)},
}
"""By the bytes of an element, and the longest row."""
LONGER, IDLE = Launch(32, 4, 8, 3), {2: 1.0, 4: 4 / 3}
"""For rows that threads with more elements fill better, if others would be so much too long."""
MANY, SMALLER = 1 << 25, Launch(32, 2, 8, 3)
"""From so many elements on, the same with smaller programs, if no residual is read, too."""


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
    columns: tl.constexpr,
    CENTRED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SUMMED: tl.constexpr,
    PAIRS: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
):
    # a difference before a product loses no digits; shorter types have none to lose
    EXACT: tl.constexpr = x.dtype.element_ty == tl.float32
    weight = vector(scale, columns, W, K)
    part = 1.0 / columns
    dscale = zeros(R, W, K)
    dbias = zeros(R, W, K)
    total = zeros(R, W, K)
    # loads of later rows are under way while this one is summed
    for first in tl.range(tl.program_id(0) * R, rows, tl.num_programs(0) * R, num_stages=STAGES):
        row, there, start = row_numbers(first, rows, columns, R)
        inv = tl.load(inverse + row, there, 0.0).to(tl.float32)[:, None]
        middle = 0.0
        if CENTRED:
            middle = tl.load(mean + row, there, 0.0).to(tl.float32)[:, None]
        offset = -middle * inv
        normals, inners = nothing(), nothing()
        dscales, dbiases, totals = nothing(), nothing(), nothing()
        slope = tl.zeros((R, W), tl.float32)
        shift = tl.zeros((R, W), tl.float32)
        for k in tl.static_range(K):
            column, mask = chunk(there, columns, k, WHOLE, W)
            # where data is masked the gradient is 0, and nothing else enters the sums
            normal = widened(tl.load(x + start + column, mask, 0.0))
            normal = (normal - middle) * inv if EXACT else normal * inv + offset
            grad = widened(tl.load(dy + start + column, mask, 0.0))
            inner = grad * weight[k]
            slope += inner * normal
            shift += inner
            normals += (normal,)
            inners += (inner,)
            dscales += (dscale[k] + grad * normal,)
            dbiases += (dbias[k] + grad,)
        dscale = dscales
        if CENTRED:
            dbias = dbiases
            slopes, shifts = row_sums(slope, shift, PAIRS)
            away = -shifts[:, None] * part * inv
        else:
            slopes = tl.sum(slope, 1)
            away = 0.0
        along = -slopes[:, None] * part * inv
        for k in tl.static_range(K):
            column, mask = chunk(there, columns, k, WHOLE, W)
            result = inners[k] * inv + (normals[k] * along + away)
            if RESIDUAL:
                result += widened(tl.load(residual + start + column, mask, 0.0))
            stored = rounded(result, dx.dtype.element_ty)
            tl.store(dx + start + column, stored, mask)
            totals += (total[k] + widened(stored),)
        if SUMMED:
            total = totals
    announce()
    kinds: tl.constexpr = 1 + CENTRED + SUMMED
    store_share(shares, 0, dscale, columns, R, W, K)
    if CENTRED:
        store_share(shares, 1, dbias, columns, R, W, K)
    if SUMMED:
        store_share(shares, kinds - 1, total, columns, R, W, K)


def takes(scale: Tensor, *statistics: Tensor) -> bool:
    """Whether rows are short enough, and scale and statistics lie as these kernels read them."""
    dense = scale.is_contiguous() and all(map(Tensor.is_contiguous, statistics))
    return dense and scale.numel() <= WIDEST


@functools.cache
def tile_of(columns: int, itemsize: int, matrices: int, many: bool, shared: int) -> Tile:
    """How programs take rows of so many elements: with fewer idle lanes, else fewer elements."""
    first = next(plan for most, plan in LAUNCHES[itemsize].items() if columns <= most)
    longer = SMALLER if many and matrices == 2 else LONGER
    tiles = [Tile.of(columns, itemsize, plan, matrices, shared) for plan in (first, longer)]
    if tiles[0].width * tiles[0].chunks <= IDLE[itemsize] * columns:
        return tiles[0]
    return min(tiles, key=lambda tile: tile.width * tile.chunks)


class Plan(NamedTuple):
    """How rows of one shape and type are taken.

    Attributes:
        grid: Programs of the launch.
        numbers: Numbers in all their shares.
        values: Arguments of the kernel that are no tensors.
        options: Warps, and most registers of a thread.
        sums: How the shares are added up.
        shape: Shape of these sums.
    """

    grid: tuple[int]
    numbers: int
    values: tuple[Any, ...]
    options: dict[str, int]
    sums: Sums
    shape: tuple[int, int]


@functools.lru_cache(1024)
def _plan(rows: int, columns: int, itemsize: int, device: torch.device, *flags: bool) -> Plan:
    centred, residual, summed = flags
    matrices, shared = 3 if residual else 2, shared_memory(device)
    tile = tile_of(columns, itemsize, matrices, rows * columns >= MANY, shared)
    kinds, count = 1 + centred + summed, tile.programs(rows, device)
    return Plan(
        (count,),
        kinds * count * columns,
        (rows, columns, *flags, not interpreted(), *tile.cut),
        {"num_warps": tile.warps, "maxnreg": tile.registers},
        sums_of(kinds, columns, count),
        (kinds, columns),
    )


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
    columns, device = scale.numel(), x.device
    flags = mean is not None, residual is not None, summed
    plan = _plan(x.numel() // columns, columns, x.dtype.itemsize, device, *flags)
    shares = MEMORY.of((plan.numbers,), device)
    dx, sums = torch.empty_like(x), scale.new_empty(plan.shape)
    _grad[plan.grid](
        dx,
        shares,
        dy,
        x,
        scale,
        inverse if mean is None else mean,
        inverse,
        x if residual is None else residual,
        *plan.values,
        **plan.options,
    )
    plan.sums.add(sums, shares)
    return dx, sums
