"""Gradient of layer and root-mean-square normalization over the last axes.

Each program goes through many rows and keeps its share of the weights' gradients in registers;
those that finish last add the shares up in a fixed order.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.approx import rounded, widened
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import row_sums
from onnxtrain.kernels.fast.rows import (
    Launch,
    Tile,
    chunk,
    join_rows,
    nothing,
    row_numbers,
    store_share,
    vector,
    zeros,
)
from onnxtrain.kernels.fast.shares import Shares, add_shares

WIDEST = 16384
LAUNCHES = {2: Launch(16, 4, 16, 3), 4: Launch(16, 4, 16, 3)}
"""By the bytes of an element."""
LONGER = Launch(32, 4, 8, 3)
"""For rows that threads with twice as many elements fill better."""


@Compiled
@triton.jit
def _grad(
    dx,
    sums,
    shares,
    counters,
    dy,
    x,
    scale,
    mean,
    inverse,
    residual,
    rows,
    columns,
    helpers,
    CENTRED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SUMMED: tl.constexpr,
    PAIRS: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
    STRIP: tl.constexpr,
):
    weight = vector(scale, columns, W, K)
    part = 1.0 / columns
    dscale = zeros(R, W, K)
    dbias = zeros(R, W, K)
    total = zeros(R, W, K)
    # loads of later rows are under way while this one is summed
    for first in tl.range(tl.program_id(0) * R, rows, tl.num_programs(0) * R, num_stages=STAGES):
        row, there, start = row_numbers(first, rows, columns, R)
        inv = tl.load(inverse + row, there, 0.0).to(tl.float32)[:, None]
        offset = 0.0
        if CENTRED:
            offset = -tl.load(mean + row, there, 0.0).to(tl.float32)[:, None] * inv
        normals, inners = nothing(), nothing()
        dscales, dbiases, totals = nothing(), nothing(), nothing()
        slope = tl.zeros((R, W), tl.float32)
        shift = tl.zeros((R, W), tl.float32)
        for k in tl.static_range(K):
            column, mask = chunk(there, columns, k, WHOLE, W)
            # where data is masked the gradient is 0, and nothing else enters the sums
            normal = widened(tl.load(x + start + column, mask, 0.0)) * inv + offset
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
    kinds: tl.constexpr = 1 + CENTRED + SUMMED
    store_share(shares, 0, dscale, columns, R, W, K)
    if CENTRED:
        store_share(shares, 1, dbias, columns, R, W, K)
    if SUMMED:
        store_share(shares, kinds - 1, total, columns, R, W, K)
    if R > 1:
        tl.debug_barrier()
        for kind in tl.static_range(kinds):
            join_rows(shares, kind, columns, R, W, K)
    count = tl.num_programs(0)
    add_shares(sums, shares, counters, count, R * columns, columns, kinds, helpers, 128, STRIP)


def takes(scale: Tensor, *statistics: Tensor) -> bool:
    """Whether rows are short enough, and scale and statistics lie as these kernels read them."""
    return scale.numel() <= WIDEST and all(t.is_contiguous() for t in (scale, *statistics))


@functools.cache
def tile_of(columns: int, itemsize: int, matrices: int) -> Tile:
    """How programs take rows of so many elements: with fewer idle lanes, else fewer elements."""
    tiles = [Tile.of(columns, itemsize, plan, matrices) for plan in (LAUNCHES[itemsize], LONGER)]
    return min(tiles, key=lambda tile: tile.width * tile.chunks)


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
    rows, size = x.numel() // columns, x.dtype.itemsize
    tile = tile_of(columns, size, 2 if residual is None else 3)
    count = tile.programs(rows, x.device)
    kinds = (1 if mean is None else 2) + summed
    sums = torch.empty((kinds, columns), dtype=scale.dtype, device=x.device)
    strip = 8 * tile.warps
    shares, counters, helpers = Shares.of(sums, count * tile.rows, count, strip)
    dx = torch.empty_like(x)
    _grad[(count,)](
        dx,
        sums,
        shares,
        counters,
        dy,
        x,
        scale,
        inverse if mean is None else mean,
        inverse,
        x if residual is None else residual,
        rows,
        columns,
        helpers,
        mean is not None,
        residual is not None,
        summed,
        not interpreted(),
        tile.stages,
        tile.whole,
        tile.rows,
        tile.width,
        tile.chunks,
        strip,
        num_warps=tile.warps,
        maxnreg=tile.registers,
    )
    return dx, sums
