"""Gradients of softmax along an axis that is not the last one, by clusters of programs.

A program that holds whole columns of a long axis has few of them, and reads few bytes in a row:
memory gives more at once. Those of a cluster have more columns, and some of their rows each.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import unchanged, widened
from onnxtrain.kernels.fast.common.cluster import InClusters, largest
from onnxtrain.kernels.fast.common.cluster_pairs import opened, swapped
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv, power
from onnxtrain.kernels.fast.softmax_steps import grad_of, grad_term

WIDTH = 64
"""Columns of a program."""
ROWS, WARPS, REGISTERS = {2: 32, 4: 16}, (4, 8), 128
"""Rows of a warp by the bytes of an element, warps of a program, and most registers of a thread."""
SHORTEST, LEAST = 513, 1 << 22
"""Rows, and elements of a tensor, from which on clusters are faster."""
ONES = 1024
"""Rows that one program could have."""
FULL, FULL_OF_MORE = {2: 0.9375, 4: 0.75}, {2: 0.75, 4: 0.9375}
"""Part of a cluster's rows that there must be of no more rows than that, and of more."""
FARTHEST = 1 << 31
"""Elements of a matrix, which 32 bits count."""


@triton.jit
def _gradient(
    dx,
    dy,
    y,
    zero,
    size: tl.constexpr,
    inner: tl.constexpr,
    LOG: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    W: tl.constexpr,
):
    box = opened(P, W // 2)
    tile, part = tl.program_id(0) // P, tl.program_id(0) % P
    across: tl.constexpr = (inner + W - 1) // W
    column = tile % across * W + tl.arange(0, W)[None, :]
    row = part * N + tl.arange(0, N)[:, None]
    matrix = (tile // across).to(tl.int64) * (size * inner)
    at, mask = row * inner + column, (row < size) & (column < inner)
    dy_in = tl.load(dy + matrix + at, mask, 0.0)
    y_in = tl.load(y + matrix + at, mask, 0.0)
    own = tl.sum(grad_term(widened(dy_in), widened(y_in), LOG), 0)
    # two columns are a pair
    firsts, seconds = tl.split(tl.reshape(own, (W // 2, 2)))
    firsts, seconds = swapped(box, firsts, seconds, P, W // 2)
    total = tl.reshape(tl.join(tl.sum(firsts, 0), tl.sum(seconds, 0)), (W,))
    dy_in, y_in = unchanged(dy_in, zero), unchanged(y_in, zero)
    result = grad_of(widened(dy_in), widened(y_in), total[None, :], LOG)
    tl.store(dx + matrix + at, result.to(dy_in.dtype), mask)


_clusters = Compiled(InClusters(_gradient, "P"))


class Cut(NamedTuple):
    """Programs of a cluster, rows of one, and its warps."""

    programs: int
    rows: int
    warps: int


@functools.lru_cache(1024)
def _cut(size: int, of: int, device: torch.device) -> Cut | None:
    """Small programs, or larger ones if the column is too long for those of one cluster."""
    if size < (FULL if size <= ONES else FULL_OF_MORE)[of] * power(size):
        return None
    for warps in WARPS:
        rows = ROWS[of] * warps
        if 1 < power(cdiv(size, rows)) <= largest(device):
            return Cut(power(cdiv(size, rows)), rows, warps)
    return None


def cut_of(y: Tensor, size: int, inner: int) -> Cut | None:
    """How columns of so many rows are cut for clusters; None where these would not be faster."""
    if size < SHORTEST or inner < WIDTH or y.numel() < LEAST or size * inner >= FARTHEST:
        return None
    return _cut(size, y.dtype.itemsize, y.device)


def softmax_grad(
    dx: Tensor, dy: Tensor, y: Tensor, size: int, inner: int, cut: Cut, log: bool
) -> None:
    """Write dx = y·(dy - Σ y·dy), or dy - e^y·Σ dy for the logarithm."""
    clusters = y.numel() // (size * inner) * cdiv(inner, WIDTH)
    _clusters[(clusters,)](
        *(dx, dy, y, 0, size, inner, log, cut.programs, cut.rows, WIDTH),
        num_warps=cut.warps,
        maxnreg=REGISTERS,
    )
