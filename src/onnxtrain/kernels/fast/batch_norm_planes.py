"""Batch normalization of images with their channels first: each channel has a plane in each image.

A channel is a list of groups of elements that lie side by side. Every program goes through a part
of them; the second pass goes back, where the first one has left the last groups in the cache.
Kernels are compiled for the size of a plane, by which the place of every group is divided.
"""

from __future__ import annotations

import dataclasses
import math

import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.batch_norm_steps import (
    forward_line,
    grad_line,
    load_grad,
    origin_of,
    write_grad,
    write_line,
)
from onnxtrain.kernels.fast.common.approx import widened
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv, multiprocessors


@dataclasses.dataclass(frozen=True)
class Launch:
    """Elements at once, warps, programs on a multiprocessor, stages."""

    elements: int
    warps: int
    programs: int
    stages: int


LAUNCHES = {2: Launch(2048, 4, 8, 3), 4: Launch(1024, 4, 8, 3)}
"""By the bytes of an element."""
ONE_BY_ONE = Launch(512, 4, 16, 3)
"""Where elements are read one by one, since planes begin anywhere: the place of each is found."""


@triton.jit
def _groups(
    first,
    end,
    channel,
    channels,
    plane: tl.constexpr,
    WIDE: tl.constexpr,
    B: tl.constexpr,
    G: tl.constexpr,
):
    """Where the groups of a block lie, and which of them are in this part of the channel."""
    group = first + tl.arange(0, B)
    image = group // plane
    before = (image.to(tl.int64) if WIDE else image) * channels + channel
    begin = before * plane + (group - image * plane)
    return begin[:, None] * G + tl.arange(0, G)[None, :], (group < end)[:, None]


@triton.jit
def _part(groups, each):
    """This program's channel, and the first and last of its groups."""
    begin = tl.program_id(1) * each
    return tl.program_id(0), begin, tl.minimum(begin + each, groups)


@triton.jit
def _store(parts, kind: tl.constexpr, channel, channels, total):
    place = (kind * tl.num_programs(1) + tl.program_id(1)) * channels + channel
    tl.store(parts + place, tl.sum(tl.sum(total, 1), 0))


@Compiled
@triton.jit
def _moments(
    parts,
    x,
    groups,
    each,
    channels,
    plane: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    B: tl.constexpr,
    G: tl.constexpr,
):
    channel, begin, end = _part(groups, each)
    origin = origin_of(x, channel, channel < channels, groups // plane, channels, plane * G)
    total = tl.zeros((B, G), tl.float32)
    square = tl.zeros((B, G), tl.float32)
    for first in tl.range(begin, end, B, num_stages=STAGES):
        at, mask = _groups(first, end, channel, channels, plane, WIDE, B, G)
        value = tl.where(mask, widened(tl.load(x + at, mask, 0.0)) - origin, 0.0)
        total += value
        square += value * value
    _store(parts, 0, channel, channels, total)
    _store(parts, 1, channel, channels, square)


@Compiled
@triton.jit
def _apply(
    y,
    x,
    factor,
    summand,
    residual,
    groups,
    each,
    channels,
    plane: tl.constexpr,
    RELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    B: tl.constexpr,
    G: tl.constexpr,
):
    channel, begin, end = _part(groups, each)
    by, add = tl.load(factor + channel), tl.load(summand + channel)
    last = begin + (end - 1 - begin) // B * B
    for back in tl.range(0, end - begin, B, num_stages=STAGES):
        at, mask = _groups(last - back, end, channel, channels, plane, WIDE, B, G)
        write_line(y, x, residual, at, mask, by, add, RELU, RESIDUAL)


@Compiled
@triton.jit
def _grad_sums(
    parts,
    dy,
    x,
    scale,
    shift,
    mean,
    inverse,
    groups,
    each,
    channels,
    plane: tl.constexpr,
    RELU: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    B: tl.constexpr,
    G: tl.constexpr,
):
    channel, begin, end = _part(groups, each)
    middle = tl.load(mean + channel).to(tl.float32)
    by, add = forward_line(scale, shift, mean, inverse, channel, channel < channels)
    total = tl.zeros((B, G), tl.float32)
    product = tl.zeros((B, G), tl.float32)
    for first in tl.range(begin, end, B, num_stages=STAGES):
        at, mask = _groups(first, end, channel, channels, plane, WIDE, B, G)
        grad, value = load_grad(dy, x, at, mask, by, add, RELU)
        total += grad
        product += grad * (value - middle)
    _store(parts, 0, channel, channels, total)
    _store(parts, 1, channel, channels, product)


@Compiled
@triton.jit
def _grad_apply(
    dx,
    dy,
    x,
    factors,
    groups,
    each,
    channels,
    plane: tl.constexpr,
    RELU: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    B: tl.constexpr,
    G: tl.constexpr,
):
    channel, begin, end = _part(groups, each)
    a, b, c, add = grad_line(factors, channels, channel, channel < channels)
    last = begin + (end - 1 - begin) // B * B
    for back in tl.range(0, end - begin, B, num_stages=STAGES):
        at, mask = _groups(last - back, end, channel, channels, plane, WIDE, B, G)
        write_grad(dx, dy, x, at, mask, a, b, c, add, RELU)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Channels, and parts of their groups."""

    rows: int
    channels: int
    plane: int
    group: int
    each: int
    count: int
    plan: Launch

    @classmethod
    def of(cls, x: Tensor) -> Grid:
        """How images are shared out."""
        channels, size = x.shape[1], math.prod(x.shape[2:])
        rows, of = x.shape[0] * size, x.dtype.itemsize
        group = math.gcd(size, 16 // of)
        plan = LAUNCHES[of] if group > 1 else ONE_BY_ONE
        block = plan.elements // group
        wanted = max(1, multiprocessors(x.device) * plan.programs // channels)
        each = cdiv(cdiv(rows // group, wanted), block) * block
        count = cdiv(rows // group, each)
        return cls(rows, channels, size, group, each, count, plan)

    def _run(self, kernel, *arguments, flags=()) -> None:
        """Launch a kernel over all channels and parts."""
        kernel[(self.channels, self.count)](
            *arguments,
            self.rows // self.group,
            self.each,
            self.channels,
            self.plane // self.group,
            *flags,
            self.rows * self.channels >= 1 << 31,
            self.plan.stages,
            self.plan.elements // self.group,
            self.group,
            num_warps=self.plan.warps,
        )

    def moments(self, parts: Tensor, x: Tensor) -> None:
        """Σ (x - x₀) and Σ (x - x₀)² of each part."""
        self._run(_moments, parts, x)

    def apply(
        self, y: Tensor, x: Tensor, line: Tensor, residual: Tensor | None, relu: bool
    ) -> None:
        """y = x·factor + summand, the line of each channel, then residual and Relu."""
        more = x if residual is None else residual
        flags = [relu, residual is not None]
        self._run(_apply, y, x, line[0], line[1], more, flags=flags)

    def grad_sums(
        self, parts: Tensor, dy: Tensor, x: Tensor, line: tuple[Tensor, ...], relu: bool
    ) -> None:
        """Σ dy and Σ dy·(x - mean) of each part, dy being 0 where a Relu behind was closed."""
        self._run(_grad_sums, parts, dy, x, *line, flags=[relu])

    def grad_apply(self, dx: Tensor, dy: Tensor, x: Tensor, factors: Tensor, relu: bool) -> None:
        """dx = dy·a + x·b + c."""
        self._run(_grad_apply, dx, dy, x, factors, flags=[relu])
