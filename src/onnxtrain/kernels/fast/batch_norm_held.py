"""Batch normalization of large images with their channels first, each element read once.

The programs of a channel hold a part of its elements each, tell each other what they have found,
and write the result of what they hold. Those of a few channels run at a time.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.batch_norm_steps import (
    Running,
    before,
    inverse_deviation,
    move,
    of_channel,
    passed,
    store_slopes,
    store_statistics,
    write_held,
)
from onnxtrain.kernels.fast.common.approx import product, unchanged, widened
from onnxtrain.kernels.fast.common.cluster import largest
from onnxtrain.kernels.fast.common.exchange import board, entered, fits, pairs_of
from onnxtrain.kernels.fast.common.launch import both_sums, cdiv, power
from onnxtrain.kernels.fast.common.parted import Grouped


class Launch(NamedTuple):
    """Elements of a program, its warps, registers of a thread, programs on a multiprocessor."""

    elements: int
    warps: int
    registers: int
    together: int


Launches = tuple[Launch, Launch]
TRAIN: dict[int, Launches] = {
    2: (Launch(8192, 4, 64, 8), Launch(16384, 4, 96, 5)),
    4: (Launch(4096, 4, 64, 8), Launch(8192, 4, 96, 5)),
}
GRAD: dict[int, Launches] = {
    2: (Launch(4096, 4, 64, 8), Launch(8192, 4, 96, 5)),
    4: (Launch(4096, 4, 96, 5), Launch(8192, 4, 168, 3)),
}
"""By the bytes of an element. The larger programs also serve channels too long for a cluster."""
AT_ONCE = 8
"""Fewest bytes of a group: places of single elements would fill the registers."""
PORTABLE = 8
"""Up to so many programs a cluster may have any number, beyond it only the largest."""


class Cut(NamedTuple):
    """How channels are cut into parts.

    Attributes:
        groups: Elements of a channel, in groups of those that are read at once.
        plane: The same of a plane.
        group: Elements of a group.
        parts: Programs of a channel, of which the last ones may have nothing.
        together: Programs of a cluster, which are those of a channel, or 1.
        launch: How they are launched.
    """

    groups: int
    plane: int
    group: int
    parts: int
    together: int
    launch: Launch

    @property
    def sizes(self) -> tuple[int, ...]:
        """The last arguments of a kernel."""
        each = self.launch.elements // self.group
        return self.plane, self.parts, power(self.parts), each, self.group, self.together


class Held(Grouped):
    """A Triton function of which several programs serve a channel, as a cluster if they can."""

    def launch(self, channels: int, cut: Cut, tensors: tuple[Tensor, ...], *more: Any) -> None:
        """Run over all channels; words of their programs come behind the tensors."""
        programs, words = channels * cut.parts, tensors[0]
        if cut.together == 1:
            words = board(programs, words.device)
        options = {"num_warps": cut.launch.warps, "maxnreg": cut.launch.registers}
        given = (*tensors, words, 0, cut.groups, channels, *more, *cut.sizes)
        self.by(cut.together)[(programs // cut.together,)](*given, **options)


@triton.jit
def _elements(
    channel, part, groups, channels, PLANE: tl.constexpr, B: tl.constexpr, G: tl.constexpr
):
    """Places of a part's elements, and which of them there are."""
    group = part * B + tl.arange(0, B)
    begin = (group // PLANE * channels + channel) * PLANE + group % PLANE
    return begin[:, None] * G + tl.arange(0, G)[None, :], (group < groups)[:, None]


@Held
@triton.jit
def _train(
    y,
    statistics,
    x,
    scale,
    shift,
    residual,
    old_mean,
    old_variance,
    words,
    zero,
    groups,
    channels,
    epsilon,
    momentum,
    unbiased,
    RELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RUNNING: tl.constexpr,
    PLANE: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    B: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
):
    row, part, box = entered(words, PARTS, S)
    channel = row.to(tl.int32)
    at, mask = _elements(channel, part, groups, channels, PLANE, B, G)
    held = tl.load(x + at, mask, 0.0)
    weight, bias = of_channel(scale, channel, True), of_channel(shift, channel, True)
    count = tl.minimum(tl.maximum(groups - part * B, 1), B).to(tl.float32) * G
    middle = tl.sum(tl.sum(widened(held), 1), 0) / count
    held = unchanged(held, zero)
    far = tl.where(mask, widened(held) - middle, 0.0)
    square = tl.sum(tl.sum(far * far, 1), 0)
    means, squares = pairs_of(words, box, row, part, middle, square, PARTS, P, S)
    counts = tl.minimum(tl.maximum(groups - tl.arange(0, P) * B, 0), B).to(tl.float32) * G
    whole = groups.to(tl.float32) * G
    mean = tl.sum(product(counts, means), 0) / whole
    far = means - mean
    variance = tl.sum(squares + product(counts, product(far, far)), 0) / whole
    inverse = inverse_deviation(variance, epsilon)
    held = unchanged(held, zero)
    at, mask = _elements(channel, part + zero, groups, channels, PLANE, B, G)
    write_held(y, widened(held) - mean, residual, at, mask, weight * inverse, bias, RELU, RESIDUAL)
    if part == 0:
        store_statistics(statistics, mean, variance, inverse, channels, channel, True)
        if RUNNING:
            old = before(old_mean, old_variance, channel, True, RUNNING)
            move(old_mean, old_variance, old, mean, variance, momentum, unbiased, channel, True)


@Held
@triton.jit
def _grad(
    dx,
    dscale,
    dbias,
    dy,
    x,
    scale,
    shift,
    mean,
    inverse,
    words,
    zero,
    groups,
    channels,
    RELU: tl.constexpr,
    PLANE: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    B: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
):
    row, part, box = entered(words, PARTS, S)
    channel = row.to(tl.int32)
    at, mask = _elements(channel, part, groups, channels, PLANE, B, G)
    grad, value = tl.load(dy + at, mask, 0.0), tl.load(x + at, mask, 0.0)
    inv, middle = of_channel(inverse, channel, True), of_channel(mean, channel, True)
    factor, add = of_channel(scale, channel, True) * inv, of_channel(shift, channel, True)
    passing = passed(widened(grad), widened(value) - middle, factor, add, RELU)
    slopes = passing * (widened(value) - middle)
    total, slope = both_sums(tl.sum(passing, 1), tl.sum(slopes, 1), 0, True)
    totals, slopes = pairs_of(words, box, row, part, total, slope, PARTS, P, S)
    total, slope = tl.sum(totals, 0), tl.sum(slopes, 0) * inv
    whole = groups.to(tl.float32) * G
    grad, value = unchanged(grad, zero), unchanged(value, zero)
    at, mask = _elements(channel, part + zero, groups, channels, PLANE, B, G)
    passing = passed(widened(grad), widened(value) - middle, factor, add, RELU)
    by = inv * slope / whole
    result = factor * (passing - total / whole - (widened(value) - middle) * by)
    tl.store(dx + at, result.to(dx.dtype.element_ty), mask)
    if part == 0:
        store_slopes(dscale, dbias, slope, total, channel, True)


@functools.lru_cache(1024)
def _cut(images: int, plane: int, of: int, launches: Launches, device: torch.device) -> Cut:
    """As one cluster of programs that have little room left, or by words if it takes more."""
    group, size = math.gcd(plane, 16 // of), images * plane
    given = size // group, plane // group, group
    found = []
    for launch in launches:
        parts = cdiv(size, launch.elements)
        if parts <= largest(device):
            whole = parts if parts <= PORTABLE else largest(device)
            found.append(Cut(*given, whole, whole, launch))
    if found:
        return min(found, key=lambda cut: cut.parts * cut.launch.elements)
    return Cut(*given, cdiv(size, launches[-1].elements), 1, launches[-1])


def _cut_of(x: Tensor, launches: dict[int, Launches]) -> Cut:
    of = x.dtype.itemsize
    return _cut(x.shape[0], math.prod(x.shape[2:]), of, launches[of], x.device)


def takes(x: Tensor, last: bool, grad: bool) -> bool:
    """Whether all programs of a channel run at once."""
    if last or interpreted() or x.numel() >= 1 << 31:
        return False
    cut = _cut_of(x, GRAD if grad else TRAIN)
    if cut.parts == 1 or cut.group * x.dtype.itemsize < AT_ONCE:
        return False
    return cut.together > 1 or fits(cut.parts, x, cut.launch.together)


def train(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    epsilon: float,
    relu: bool,
    residual: Tensor | None,
    running: Running | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, mean, biased variance and 1 / deviation."""
    channels = x.shape[1]
    y = torch.empty_like(x)
    found = torch.empty((3, channels), dtype=torch.float32, device=x.device)
    moved = running or Running(scale, scale, 0.0, 0.0)
    _train.launch(
        channels,
        _cut_of(x, TRAIN),
        (y, found, x, scale, shift, x if residual is None else residual, *moved[:2]),
        *(epsilon, moved.momentum, moved.unbiased),
        *(relu, residual is not None, running is not None),
    )
    return y, found[0], found[1], found[2]


def grad(
    results: tuple[Tensor, Tensor, Tensor],
    dy: Tensor,
    x: Tensor,
    line: tuple[Tensor, ...],
    relu: bool,
) -> None:
    """Write dx, dscale and dbias, of scale, shift, mean and 1 / deviation."""
    _grad.launch(x.shape[1], _cut_of(x, GRAD), (*results, dy, x, *line), relu)
