"""Sums of columns, always in the same order, alone or of a gradient that is made on the way.

Each program goes down a strip of columns through a part of the rows; a second launch adds the
parts up. The gradient of Gelu is what linear layers before it need with its sums, their bias.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import rounded, widened
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.early import announce
from onnxtrain.kernels.fast.common.launch import (
    cdiv,
    multiprocessors,
    places,
    power,
    store_sums,
    strip,
)
from onnxtrain.kernels.fast.common.rows import LANES, REGISTERS, evenly
from onnxtrain.kernels.fast.common.shares import MEMORY, Sums, sums_of
from onnxtrain.kernels.fast.pointwise import gelu_slope


@dataclasses.dataclass(frozen=True)
class Launch:
    """Bytes of a strip, rows at once, warps, programs on a multiprocessor, stages."""

    strip: int
    rows: int
    warps: int
    programs: int
    stages: int


LAUNCHES = {2: Launch(128, 64, 4, 8, 1), 4: Launch(256, 32, 4, 12, 1)}
"""By the bytes of an element."""
FEW, FEW_LAUNCH = 1 << 24, Launch(128, 64, 2, 2, 5)
"""Elements of 16 bits up to which fewer programs wait less for each other, and these."""
KNOWN = 16
"""Where rows of a multiple of so many elements begin is known to the compiler."""
MANY_ROUNDS, MANY_PARTS = 64, 8
"""Rounds of rows and parts of strips from which on no strip is to have a rest."""
READ_ONCE = "evict_first"
"""What is only read must not drive out of the cache what others have left there."""
WRITING = {2: Launch(256, 16, 4, 9, 3), 4: Launch(256, 16, 4, 8, 2)}
"""The same for kernels that write as much as they read."""
GELU = {2: Launch(256, 16, 4, 6, 1), 4: Launch(256, 16, 4, 8, 2)}
"""The same for the gradient of Gelu."""


class Strips(NamedTuple):
    """How matrices side by side are cut into strips of columns, and those into parts.

    Attributes:
        grid: Strips, and parts of each.
        numbers: Numbers in the sums of all parts.
        cut: Stages, rows at once, columns of a strip.
        options: Warps, and most registers of a thread.
        sums: How the parts are added up.
    """

    grid: tuple[int, int]
    numbers: int
    cut: tuple[int, int, int]
    options: dict[str, int]
    sums: Sums


def rows_in_one(rows: int, columns: int, unit: int = KNOWN) -> int:
    """Rows that are taken as one of whole units, so that each of these begins at a multiple.

    Only whole ones are: if some were left, 1.
    """
    together = unit // math.gcd(columns, unit)
    return 1 if rows % together else together


def in_whole_strips(
    plan: Launch, rows: int, columns: int, itemsize: int, device: torch.device
) -> int:
    """The same, of whole strips if enough programs have enough rows, else for wide loads."""
    width = plan.strip // itemsize
    together = rows_in_one(rows, columns, width)
    strips, rounds = columns * together // width, rows // together // plan.rows
    programs = multiprocessors(device) * plan.programs
    if together > 1 and rounds >= MANY_ROUNDS and strips * MANY_PARTS <= programs:
        return together
    return rows_in_one(rows, columns)


def takes(rows: int, columns: int) -> bool:
    """Whether wide loads are possible; where they are not, torch takes less time for sums alone."""
    return columns * rows_in_one(rows, columns) % KNOWN == 0


@functools.lru_cache(1024)
def strips_of(
    plan: Launch,
    rows: int,
    columns: int,
    itemsize: int,
    device: torch.device,
    matrices: int = 1,
    in_one: int = 1,
) -> Strips:
    """Strips of several matrices of one shape, or of one with some rows in one.

    Sums of the latter are shares of the columns' sums, as those of other parts are.
    """
    rows, columns = rows // in_one, columns * in_one
    width = min(plan.strip // itemsize, power(columns))
    across, every = matrices * cdiv(columns, width), matrices * columns
    wanted = max(1, multiprocessors(device) * plan.programs // across)
    parts = evenly(cdiv(rows, plan.rows), wanted)
    registers = min(255, REGISTERS // (LANES * plan.warps * plan.programs) // 8 * 8)
    return Strips(
        (across, parts),
        parts * every,
        (plan.stages, plan.rows, width),
        {"num_warps": plan.warps, "maxnreg": registers},
        sums_of(1, every // in_one, parts * in_one),
    )


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
    period,
    KIND: tl.constexpr,
    BIAS: tl.constexpr,
    KEPT: tl.constexpr,
    WHOLE: tl.constexpr,
    STAGES: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    column, fits = strip(columns, C)
    total = tl.zeros((R, C), tl.float32)
    if BIAS:
        shift = tl.load(bias + column % period, fits, 0.0).to(tl.float32)[None, :]
    for first in tl.range(tl.program_id(1) * R, rows, tl.num_programs(1) * R, num_stages=STAGES):
        at, mask = places(first, rows, columns, column, fits, WHOLE, R)
        value = widened(tl.load(dy + at, mask, 0.0, eviction_policy=KEPT))
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
    announce()
    store_sums(parts, 0, total, columns, column, fits)


def column_sums(x: Tensor, columns: int, dtype: torch.dtype | None = None) -> Tensor:
    """Σ over rows of x as a matrix with so many columns, in its type or another."""
    few = x.dtype.itemsize == 2 and x.numel() <= FEW
    plan = FEW_LAUNCH if few else LAUNCHES[x.dtype.itemsize]
    return _sums(x, x, x, None, "", columns, dtype or x.dtype, plan)


def gelu_grad_and_sums(
    dy: Tensor, x: Tensor, bias: Tensor | None, approximate: str
) -> tuple[Tensor, Tensor]:
    """dx = dy * Gelu'(x + bias), and its sums over all axes but the last."""
    dx, plan = torch.empty_like(dy), GELU[dy.dtype.itemsize]
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
    rows, device = dy.numel() // columns, dy.device
    in_one = in_whole_strips(plan, rows, columns, dy.dtype.itemsize, device)
    strips = strips_of(plan, rows, columns, dy.dtype.itemsize, device, in_one=in_one)
    out = torch.empty(columns, dtype=dtype, device=device)
    shares = MEMORY.of((strips.numbers,), device)
    shift = x if bias is None else bias
    across = columns * in_one
    shape = (rows // in_one, across, columns)
    flags = (kind, bias is not None, "" if kind else READ_ONCE, across % strips.cut[-1] == 0)
    _strips[strips.grid](shares, dx, dy, x, shift, *shape, *flags, *strips.cut, **strips.options)
    strips.sums.add(out, shares)
    return out
