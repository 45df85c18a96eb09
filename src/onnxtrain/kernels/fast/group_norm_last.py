"""Normalization of groups of channels that lie last in memory, and its gradient.

A group has few bytes of each place there, of which a program for one group would read many more.
Programs that have all groups of some places leave two numbers of each channel; a small launch makes
what each group needs of these, and a third one goes through the places again, from the end.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import inverse_root, product
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv, multiprocessors, power
from onnxtrain.kernels.fast.group_norm_steps import activated, before_activation, gone_on

SMALLEST = 1 << 20
"""Elements from which on three launches are faster than one."""
NARROW = 128
"""Bytes of a group at one place from which on programs for one group read nothing else."""
ROW, TILE, WARPS = 64, 4096, 8
"""Most channels of a program, elements of a tile, and warps."""
PROGRAMS = 8
"""So many programs a multiprocessor share all places."""
COLLECTED = 1024
"""Sums that one warp reads at once."""


@triton.jit
def _each(places, parts, PB: tl.constexpr):
    """Places of a part, all but the last."""
    return tl.cdiv(tl.cdiv(places, PB), parts) * PB


@triton.jit
def _part(places, parts, CHANNELS: tl.constexpr, CB: tl.constexpr, PB: tl.constexpr):
    """A program's sample and part of it, its channels, and its first and last place."""
    strips: tl.constexpr = (CHANNELS + CB - 1) // CB
    number = tl.program_id(0)
    channel = number % strips * CB + tl.arange(0, CB)
    part, sample = number // strips % parts, number // strips // parts
    each = _each(places, parts, PB)
    first = part * each
    return sample, part, channel, first, tl.minimum(places, first + each)


@triton.jit
def _at(start, end, channel, CHANNELS: tl.constexpr, PB: tl.constexpr):
    """Where a tile lies in its sample, and what of it is there."""
    place = start + tl.arange(0, PB)[:, None]
    at = place.to(tl.int64) * CHANNELS + channel[None, :]
    return at, (place < end) & (channel < CHANNELS)[None, :]


@triton.jit
def _last_first(number, first, end, PB: tl.constexpr):
    """Where the tile begins that comes so many before the last, which the cache may still have."""
    return first + (tl.cdiv(end - first, PB) - 1) * PB - number


@triton.jit
def _leave(sums, sample, part, parts, channel, one, other, CHANNELS: tl.constexpr):
    """Store two numbers of each channel of a part."""
    to = sums + (sample.to(tl.int64) * parts + part) * 2 * CHANNELS + channel
    tl.store(to, one, channel < CHANNELS)
    tl.store(to + CHANNELS, other, channel < CHANNELS)


@triton.jit
def _collect(
    sums, sample, parts, channel, fits,
    CHANNELS: tl.constexpr,
    SB: tl.constexpr,
    QB: tl.constexpr,
):  # fmt: skip
    """The two sums of some channels over all parts."""
    first = sums + sample.to(tl.int64) * parts * 2 * CHANNELS + channel[None, :]
    one, other = tl.zeros([QB, SB], tl.float32), tl.zeros([QB, SB], tl.float32)
    for begin in range(0, parts, QB):
        part = begin + tl.arange(0, QB)[:, None]
        at, mask = first + part * 2 * CHANNELS, (part < parts) & fits[None, :]
        one += tl.load(at, mask, 0.0)
        other += tl.load(at + CHANNELS, mask, 0.0)
    return tl.sum(one, 0), tl.sum(other, 0)


@Compiled
@triton.jit
def _sums(
    sums, x, places, parts, CHANNELS: tl.constexpr, CB: tl.constexpr, PB: tl.constexpr
):  # fmt: skip
    """Mean and squared deviations of each channel of a part."""
    sample, part, channel, first, end = _part(places, parts, CHANNELS, CB, PB)
    base = x + sample.to(tl.int64) * CHANNELS * places
    middle, squares = tl.zeros([PB, CB], tl.float32), tl.zeros([PB, CB], tl.float32)
    for start in range(first, end, PB):
        at, there = _at(start, end, channel, CHANNELS, PB)
        value = tl.load(base + at, there, 0.0).to(tl.float32)
        share = 1.0 / ((start - first) // PB + 1)
        middle, squares = gone_on(middle, squares, value, share, there)
    left = tl.maximum(end - first, 0)
    seen = ((left - tl.arange(0, PB) + PB - 1) // PB).to(tl.float32)[:, None]
    mean = tl.sum(product(middle, seen), 0) / tl.maximum(left, 1)
    away = middle - mean[None, :]
    spread = tl.sum(squares + away * away * seen, 0)
    _leave(sums, sample, part, parts, channel, mean, spread, CHANNELS)


@triton.jit
def _parts_of(
    begin, places, parts, fits, CHANNELS: tl.constexpr, PB: tl.constexpr, QB: tl.constexpr
):  # fmt: skip
    """Where some parts left their numbers, which there are, and how many places each has seen."""
    part = begin + tl.arange(0, QB)[:, None]
    each = _each(places, parts, PB)
    seen = tl.maximum(tl.minimum(places - part * each, each), 0).to(tl.float32)
    return part * 2 * CHANNELS, (part < parts) & fits, seen


@Compiled
@triton.jit
def _statistics(
    mean, inverse, sums, places, parts, epsilon,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    PB: tl.constexpr,
    SB: tl.constexpr,
    QB: tl.constexpr,
):  # fmt: skip
    """Mean and inverse deviation of a group, from those of its channels in all parts."""
    size: tl.constexpr = CHANNELS // GROUPS
    sample, group = tl.program_id(0) // GROUPS, tl.program_id(0) % GROUPS
    lane = tl.arange(0, SB)[None, :]
    fits, channel = lane < size, group * size + lane
    source = sums + sample.to(tl.int64) * parts * 2 * CHANNELS + channel
    count = tl.cast(places, tl.float32) * size
    total, spread = tl.zeros([QB, SB], tl.float32), tl.zeros([QB, SB], tl.float32)
    for begin in range(0, parts, QB):
        at, mask, seen = _parts_of(begin, places, parts, fits, CHANNELS, PB, QB)
        total += tl.load(source + at, mask, 0.0) * seen
    middle = tl.sum(total) / count
    for begin in range(0, parts, QB):
        at, mask, seen = _parts_of(begin, places, parts, fits, CHANNELS, PB, QB)
        away = tl.where(mask, tl.load(source + at, mask, 0.0) - middle, 0.0)
        spread += tl.load(source + CHANNELS + at, mask, 0.0) + away * away * seen
    tl.store(mean + tl.program_id(0), middle)
    tl.store(inverse + tl.program_id(0), inverse_root(tl.sum(spread) / count + epsilon))


@triton.jit
def _of_groups(mean, inverse, sample, channel, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Mean and inverse deviation of each channel's group."""
    size: tl.constexpr = CHANNELS // GROUPS
    at, fits = sample * GROUPS + channel // size, channel < CHANNELS
    return tl.load(mean + at, fits, 0.0)[None, :], tl.load(inverse + at, fits, 0.0)[None, :]


@triton.jit
def _of_channels(vector, channel, CHANNELS: tl.constexpr):
    return tl.load(vector + channel, channel < CHANNELS, 0.0).to(tl.float32)[None, :]


@Compiled
@triton.jit
def _apply(
    y, x, scale, shift, mean, inverse, places, parts, alpha,
    KIND: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    CB: tl.constexpr,
    PB: tl.constexpr,
):  # fmt: skip
    sample, _, channel, first, end = _part(places, parts, CHANNELS, CB, PB)
    base = sample.to(tl.int64) * CHANNELS * places
    center, steep = _of_groups(mean, inverse, sample, channel, CHANNELS, GROUPS)
    factor = _of_channels(scale, channel, CHANNELS) * steep
    added = _of_channels(shift, channel, CHANNELS)
    for number in range(0, end - first, PB):
        start = _last_first(number, first, end, PB)
        at, there = _at(start, end, channel, CHANNELS, PB)
        value = tl.load(x + base + at, there, 0.0).to(tl.float32) - center
        result = activated(value * factor + added, alpha, KIND)
        tl.store(y + base + at, result.to(y.dtype.element_ty), there)


@triton.jit
def _gradient(dy, x, at, there, vectors, alpha, KIND: tl.constexpr):
    """The gradient of a tile before the activation, and what was normalized there."""
    center, steep, weight, added = vectors
    grad = tl.load(dy + at, there, 0.0).to(tl.float32)
    normal = (tl.load(x + at, there, 0.0).to(tl.float32) - center) * steep
    return before_activation(grad, normal * weight + added, alpha, KIND, False), normal


@Compiled
@triton.jit
def _grad_sums(
    sums, dy, x, scale, shift, mean, inverse, places, parts, alpha,
    KIND: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    CB: tl.constexpr,
    PB: tl.constexpr,
):  # fmt: skip
    """Sums of dy·n and dy of each channel of a part."""
    sample, part, channel, first, end = _part(places, parts, CHANNELS, CB, PB)
    base = sample.to(tl.int64) * CHANNELS * places
    center, steep = _of_groups(mean, inverse, sample, channel, CHANNELS, GROUPS)
    weight = _of_channels(scale, channel, CHANNELS)
    vectors = (center, steep, weight, _of_channels(shift, channel, CHANNELS))
    products, plain = tl.zeros([PB, CB], tl.float32), tl.zeros([PB, CB], tl.float32)
    for start in range(first, end, PB):
        at, there = _at(start, end, channel, CHANNELS, PB)
        grad, normal = _gradient(dy + base, x + base, at, there, vectors, alpha, KIND)
        products += grad * normal
        plain += grad
    one, other = tl.sum(products, 0), tl.sum(plain, 0)
    _leave(sums, sample, part, parts, channel, one, other, CHANNELS)


@Compiled
@triton.jit
def _grad_terms(
    terms, totals, sums, scale, places, parts, samples,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    SB: tl.constexpr,
    QB: tl.constexpr,
):  # fmt: skip
    """What a group's gradient has taken off, and the sums of its channels over all parts."""
    size: tl.constexpr = CHANNELS // GROUPS
    sample, group = tl.program_id(0) // GROUPS, tl.program_id(0) % GROUPS
    lane = tl.arange(0, SB)
    fits, channel = lane < size, group * size + lane
    products, plain = _collect(sums, sample, parts, channel, fits, CHANNELS, SB, QB)
    to = totals + sample * CHANNELS + channel
    tl.store(to, products, fits)
    tl.store(to + samples * CHANNELS, plain, fits)
    weight = tl.load(scale + channel, fits, 0.0).to(tl.float32)
    count = tl.cast(places, tl.float32) * size  # which may be too many for 32 bits
    tl.store(terms + tl.program_id(0), tl.sum(product(products, weight), 0) / count)
    tl.store(terms + samples * GROUPS + tl.program_id(0), tl.sum(product(plain, weight), 0) / count)


@Compiled
@triton.jit
def _grad_apply(
    dx, dy, x, scale, shift, mean, inverse, terms, places, parts, samples, alpha,
    KIND: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    CB: tl.constexpr,
    PB: tl.constexpr,
):  # fmt: skip
    sample, _, channel, first, end = _part(places, parts, CHANNELS, CB, PB)
    base = sample.to(tl.int64) * CHANNELS * places
    center, steep = _of_groups(mean, inverse, sample, channel, CHANNELS, GROUPS)
    behind = terms + samples * GROUPS
    along, even = _of_groups(terms, behind, sample, channel, CHANNELS, GROUPS)
    weight = _of_channels(scale, channel, CHANNELS)
    vectors = (center, steep, weight, _of_channels(shift, channel, CHANNELS))
    for number in range(0, end - first, PB):
        start = _last_first(number, first, end, PB)
        at, there = _at(start, end, channel, CHANNELS, PB)
        grad, normal = _gradient(dy + base, x + base, at, there, vectors, alpha, KIND)
        value = steep * (grad * weight - even - normal * along)
        tl.store(dx + base + at, value.to(dx.dtype.element_ty), there)


class Cut(NamedTuple):
    """How samples are shared: programs, places, parts of a sample, and sizes of blocks."""

    programs: int
    places: int
    parts: int
    channels: int
    tile: tuple[int, int]
    collected: tuple[int, int]


@functools.lru_cache(1024)
def _cut(samples: int, channels: int, places: int, groups: int, device: torch.device) -> Cut:
    wide = min(power(channels), ROW)
    tall = min(power(places), TILE // wide)
    strips = cdiv(channels, wide)
    wanted = cdiv(multiprocessors(device) * PROGRAMS, samples * strips)
    parts = max(1, min(wanted, cdiv(places, tall)))
    each = power(channels // groups)
    collected = each, min(power(parts), max(1, COLLECTED // each))
    return Cut(samples * parts * strips, places, parts, channels, (wide, tall), collected)


def takes(x: Tensor, groups: int) -> bool:
    """Whether images have their channels last, and so few of them in a group that this pays."""
    if x.ndim != 4 or x.is_contiguous() or x.numel() < SMALLEST:
        return False
    return x.shape[1] // groups * x.dtype.itemsize < NARROW


def normalize(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    groups: int,
    epsilon: float,
    activation: str,
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and mean and inverse deviation of each group; y lies in memory as x does."""
    samples, channels = x.shape[:2]
    cut = _cut(samples, channels, x.shape[2:].numel(), groups, x.device)
    y = torch.empty_like(x)
    mean, inverse = torch.empty(2, samples, groups, device=x.device)
    sums = torch.empty(samples, cut.parts, 2, channels, device=x.device)
    over = cut.places, cut.parts
    _sums[(cut.programs,)](sums, x, *over, channels, *cut.tile, num_warps=WARPS)
    _statistics[(samples * groups,)](
        *(mean, inverse, sums, *over, epsilon, channels, groups, cut.tile[1], *cut.collected),
        num_warps=1,
    )
    _apply[(cut.programs,)](
        *(y, x, scale, shift, mean, inverse, *over, alpha, activation),
        *(channels, groups, *cut.tile),
        num_warps=WARPS,
    )
    return y, mean, inverse


def grad(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    mean: Tensor,
    inverse: Tensor,
    shift: Tensor,
    activation: str,
    alpha: float,
) -> tuple[Tensor, Tensor]:
    """dx, and for each sample the gradients of scale and shift."""
    samples, channels = x.shape[:2]
    groups = mean.shape[1]
    cut = _cut(samples, channels, x.shape[2:].numel(), groups, x.device)
    dx = torch.empty_like(x)
    sums = torch.empty(samples, cut.parts, 2, channels, device=x.device)
    totals = torch.empty(2, samples, channels, device=x.device)
    terms = torch.empty(2, samples, groups, device=x.device)
    over, given = (cut.places, cut.parts), (dy, x, scale, shift, mean, inverse)
    how = activation, channels, groups, *cut.tile
    _grad_sums[(cut.programs,)](sums, *given, *over, alpha, *how, num_warps=WARPS)
    _grad_terms[(samples * groups,)](
        *(terms, totals, sums, scale, *over, samples, channels, groups, *cut.collected), num_warps=1
    )
    _grad_apply[(cut.programs,)](*(dx, *given, terms, *over, samples, alpha, *how), num_warps=WARPS)
    return dx, totals
