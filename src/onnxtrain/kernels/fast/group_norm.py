"""Normalization of groups of channels, and its gradient; a program has a group of a sample.

It goes through its group twice, in tiles; the second time most of it comes from the cache.
Channels may be the second axis in memory or the last one, of which narrow groups are taken together
(``group_norm_last``).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import group_norm_last
from onnxtrain.kernels.fast.common.approx import inverse_root, product
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import power
from onnxtrain.kernels.fast.group_norm_steps import activated, before_activation, gone_on

TILE = 4096
"""Elements of a tile."""
MOST_CHANNELS = 64
WARPS = 8
WHOLE = 16
"""Channels of a multiple of so many elements are read several at once, and Triton knows it."""


@triton.jit
def _tile(begin, start, size, places, CHANNELS: tl.constexpr, LAST: tl.constexpr,
          CB: tl.constexpr, PB: tl.constexpr):  # fmt: skip
    """Where a tile lies, what of it is there, and its channels."""
    if LAST:
        channel, place = begin + tl.arange(0, CB)[None, :], start + tl.arange(0, PB)[:, None]
        at = place.to(tl.int64) * CHANNELS + channel
    else:
        channel, place = begin + tl.arange(0, CB)[:, None], start + tl.arange(0, PB)[None, :]
        at = channel.to(tl.int64) * places + place
    return at, (channel < size) & (place < places), channel


@triton.jit
def _before(
    grad, normal, scale, shift, channel, fits, alpha, KIND: tl.constexpr, SUMMED: tl.constexpr
):  # fmt: skip
    """The gradient before the activation, whose input is computed again."""
    line = normal
    if KIND != "none":
        weight = tl.load(scale + channel, fits, 0.0).to(tl.float32)
        line = normal * weight + tl.load(shift + channel, fits, 0.0).to(tl.float32)
    return before_activation(grad, line, alpha, KIND, SUMMED)


@Compiled
@triton.jit
def _normalize(
    y, mean, inverse, x, scale, shift, places, epsilon, alpha,
    KIND: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    LAST: tl.constexpr,
    CB: tl.constexpr,
    PB: tl.constexpr,
):  # fmt: skip
    size: tl.constexpr = CHANNELS // GROUPS
    group = tl.program_id(0) % GROUPS
    first = group * size
    base = (tl.program_id(0) // GROUPS).to(tl.int64) * CHANNELS * places
    base += first if LAST else first.to(tl.int64) * places
    count = tl.cast(places, tl.float32) * size  # which may be too many for 32 bits
    # mean and squared deviations of what each place of the tile has seen keep their digits
    middle = tl.zeros([PB, CB] if LAST else [CB, PB], tl.float32)
    squares, seen = middle, middle
    for begin in range(0, size, CB):
        for start in range(0, places, PB):
            at, there, _ = _tile(begin, start, size, places, CHANNELS, LAST, CB, PB)
            value = tl.load(x + base + at, there, 0.0).to(tl.float32)
            seen += there.to(tl.float32)
            middle, squares = gone_on(middle, squares, value, 1.0 / tl.maximum(seen, 1.0), there)
    center = tl.sum(product(middle, seen)) / count
    away = middle - center
    variance = tl.sum(squares + away * away * seen) / count
    steep = inverse_root(variance + epsilon)
    tl.store(mean + tl.program_id(0), center)
    tl.store(inverse + tl.program_id(0), steep)
    for begin in range(0, size, CB):
        for start in range(0, places, PB):
            at, there, channel = _tile(begin, start, size, places, CHANNELS, LAST, CB, PB)
            fits = channel < size
            factor = tl.load(scale + first + channel, fits, 0.0).to(tl.float32) * steep
            added = tl.load(shift + first + channel, fits, 0.0).to(tl.float32)
            value = tl.load(x + base + at, there, 0.0).to(tl.float32) - center
            result = activated(value * factor + added, alpha, KIND)
            tl.store(y + base + at, result.to(y.dtype.element_ty), there)


@Compiled
@triton.jit
def _grad(
    dx, sums, dy, x, scale, shift, mean, inverse, places, samples, alpha,
    KIND: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    LAST: tl.constexpr,
    CB: tl.constexpr,
    PB: tl.constexpr,
    SINGLE: tl.constexpr,
):  # fmt: skip
    size: tl.constexpr = CHANNELS // GROUPS
    axis: tl.constexpr = 0 if LAST else 1
    group, sample = tl.program_id(0) % GROUPS, tl.program_id(0) // GROUPS
    first = group * size
    base = sample.to(tl.int64) * CHANNELS * places
    base += first if LAST else first.to(tl.int64) * places
    count = tl.cast(places, tl.float32) * size  # which may be too many for 32 bits
    center, steep = tl.load(mean + tl.program_id(0)), tl.load(inverse + tl.program_id(0))
    along, even = 0.0, 0.0
    for begin in range(0, size, CB):
        column = begin + tl.arange(0, CB)
        fits = column < size
        products, plain = tl.zeros([CB], tl.float32), tl.zeros([CB], tl.float32)
        for start in range(0, places, PB):
            at, there, channel = _tile(begin, start, size, places, CHANNELS, LAST, CB, PB)
            grad = tl.load(dy + base + at, there, 0.0).to(tl.float32)
            normal = (tl.load(x + base + at, there, 0.0).to(tl.float32) - center) * steep
            inside = channel < size
            place = first + channel
            grad = _before(grad, normal, scale, shift, place, inside, alpha, KIND, SINGLE)
            term = product(grad, normal) if SINGLE else grad * normal
            products += tl.sum(term, axis)
            plain += tl.sum(grad, axis)
        plain += 0.0  # a sum of what is loaded must have one use, or Triton 3.6 may fail
        weight = tl.load(scale + first + column, fits, 0.0).to(tl.float32)
        to = sample * CHANNELS + first + column
        tl.store(sums + to, products, fits)
        tl.store(sums + samples * CHANNELS + to, plain, fits)
        along += tl.sum(product(products, weight), 0)
        even += tl.sum(product(plain, weight), 0)
    along, even = along / count, even / count
    for begin in range(0, size, CB):
        for start in range(0, places, PB):
            at, there, channel = _tile(begin, start, size, places, CHANNELS, LAST, CB, PB)
            inside = channel < size
            weight = tl.load(scale + first + channel, inside, 0.0).to(tl.float32)
            grad = tl.load(dy + base + at, there, 0.0).to(tl.float32)
            normal = (tl.load(x + base + at, there, 0.0).to(tl.float32) - center) * steep
            place = first + channel
            grad = _before(grad, normal, scale, shift, place, inside, alpha, KIND, False)
            grad *= weight
            value = steep * (grad - even - normal * along)
            tl.store(dx + base + at, value.to(dx.dtype.element_ty), there)


def takes(*tensors: Tensor) -> bool:
    """Whether tensors lie in memory in one of the two orders, and all in the same."""
    first = tensors[0]
    if all(t.is_contiguous() for t in tensors):
        return True
    return first.ndim == 4 and all(map(_is_last, tensors))


def _is_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


def _blocks(x: Tensor, groups: int) -> tuple[int, int, int, int, int, int]:
    """Places of a channel, channels, groups, whether these are last, and the sizes of a tile."""
    channels, places = x.shape[1], x.shape[2:].numel()
    wide = min(power(channels // groups), MOST_CHANNELS)
    return places, channels, groups, not x.is_contiguous(), wide, min(power(places), TILE // wide)


def normalize(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    groups: int,
    epsilon: float,
    activation: str = "none",
    alpha: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and mean and inverse deviation of each group; y lies in memory as x does."""
    if group_norm_last.takes(x, groups):
        return group_norm_last.normalize(x, scale, shift, groups, epsilon, activation, alpha)
    y = torch.empty_like(x)
    mean, inverse = torch.empty(2, len(x), groups, device=x.device)
    places, *sizes = _blocks(x, groups)
    _normalize[(len(x) * groups,)](
        *(y, mean, inverse, x, scale, shift, places, epsilon, alpha, activation, *sizes),
        num_warps=WARPS,
    )
    return y, mean, inverse


def grad(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    mean: Tensor,
    inverse: Tensor,
    shift: Tensor | None = None,
    activation: str = "none",
    alpha: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, and the gradients of scale and shift; only an activation takes the shift."""
    shift = scale if shift is None else shift
    if group_norm_last.takes(x, mean.shape[1]):
        given = dy, x, scale, mean, inverse, shift, activation, alpha
        dx, sums = group_norm_last.grad(*given)
    else:
        dx, sums = torch.empty_like(x), torch.empty(2, len(x), x.shape[1], device=x.device)
        places, *sizes = _blocks(x, mean.shape[1])
        # whether a thread may have one element of a channel at a time, which it adds to another's
        single = places % WHOLE != 0 or math.prod(sizes[-2:]) < TILE
        _grad[(mean.numel(),)](
            *(dx, sums, dy, x, scale, shift, mean, inverse),
            *(places, len(x), alpha, activation, *sizes, single),
            num_warps=WARPS,
        )
    to_scale, to_shift = sums.sum(1).to(scale.dtype)
    return dx, to_scale, to_shift
