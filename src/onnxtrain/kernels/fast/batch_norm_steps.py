"""What every kernel of batch normalization does with a channel, however its elements lie.

The line of a channel is y = x·factor + summand; a shortcut and a Relu may follow it.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import widened

NEAR = tl.constexpr(8)
"""Elements of a channel by which its mean is guessed."""


class Running(NamedTuple):
    """Running mean and variance, what weighs the old ones, and what makes a variance unbiased."""

    mean: Tensor
    variance: Tensor
    momentum: float
    unbiased: float


@triton.jit
def of_channel(vector, channel, fits):
    """What a vector with an element for each channel has for these, in float32."""
    return tl.load(vector + channel, fits, 0.0).to(tl.float32)


@triton.jit
def _some(x, channel, fits, images, channels, plane, k: tl.constexpr):
    """An element of each channel, from the k-th of NEAR shares of its images and planes."""
    image = tl.cast(images, tl.int64) * (2 * k + 1) // (2 * NEAR)
    pixel = tl.cast(plane, tl.int64) * (2 * k + 1) // (2 * NEAR)
    return of_channel(x, (image * channels + channel) * plane + pixel, fits)


@triton.jit
def origin_of(x, channel, fits, images, channels, plane):
    """Numbers that are near the means of channels: the mean of a few elements from all over each.

    The first element may be the corner of a padded image, and unlike all others. Channels that lie
    side by side have as many images as rows, with planes of one element.
    """
    total = _some(x, channel, fits, images, channels, plane, 0)
    for k in tl.static_range(1, NEAR):
        total += _some(x, channel, fits, images, channels, plane, k)
    return total / NEAR


@triton.jit
def inverse_deviation(variance, epsilon):
    """1 / √(variance + ε), both steps rounded to the nearest."""
    one = tl.full(variance.shape, 1.0, tl.float32)
    return tl.div_rn(one, tl.sqrt_rn(variance + epsilon))


@triton.jit
def line_of(scale, shift, mean, inverse, channel, fits):
    """Factor and summand of channels whose mean and 1 / deviation are known."""
    factor = of_channel(scale, channel, fits) * inverse
    return factor, of_channel(shift, channel, fits) - mean * factor


@triton.jit
def forward_line(scale, shift, mean, inverse, channel, fits):
    """Factor and summand, of vectors of means and 1 / deviations, as the forward pass had them."""
    middle, inv = of_channel(mean, channel, fits), of_channel(inverse, channel, fits)
    return line_of(scale, shift, middle, inv, channel, fits)


@triton.jit
def store_statistics(statistics, mean, variance, inverse, channels, channel, fits):
    """Leave mean, variance and 1 / deviation, one behind the other."""
    tl.store(statistics + channel, mean, fits)
    tl.store(statistics + channels + channel, variance, fits)
    tl.store(statistics + 2 * channels + channel, inverse, fits)


@triton.jit
def before(old_mean, old_variance, channel, fits, RUNNING: tl.constexpr):
    """Running statistics as they are, to be read long before they move."""
    old = None
    if RUNNING:
        old = (tl.load(old_mean + channel, fits, 0.0), tl.load(old_variance + channel, fits, 0.0))
    return old


@triton.jit
def _blend(place, old, new, momentum, fits):
    """old·momentum + new·(1 - momentum)."""
    mixed = old.to(tl.float32) * momentum + new * (1.0 - momentum)
    tl.store(place, mixed.to(old.dtype), fits)


@triton.jit
def move(old_mean, old_variance, old, mean, variance, momentum, unbiased, channel, fits):
    """Move running statistics, which were so before, towards those of a batch."""
    _blend(old_mean + channel, old[0], mean, momentum, fits)
    _blend(old_variance + channel, old[1], variance * unbiased, momentum, fits)


@triton.jit
def finished(result, residual, at, mask, RELU: tl.constexpr, RESIDUAL: tl.constexpr):
    """The normalized value plus what a shortcut brings, and no less than 0 with a Relu behind."""
    if RESIDUAL:
        result += widened(tl.load(residual + at, mask, 0.0))
    if RELU:
        result = tl.maximum(result, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return result


@triton.jit
def passed(grad, value, factor, summand, RELU: tl.constexpr):
    """The gradient where a Relu behind the line was open, 0 elsewhere."""
    if RELU:
        grad = tl.where(value * factor + summand > 0, grad, 0.0)
    return grad


@triton.jit
def write_line(
    y,
    x,
    residual,
    at,
    mask,
    factor,
    summand,
    RELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """y = x·factor + summand, then residual and Relu, of some elements."""
    value = widened(tl.load(x + at, mask, 0.0))
    write_held(y, value, residual, at, mask, factor, summand, RELU, RESIDUAL)


@triton.jit
def write_held(
    y,
    value,
    residual,
    at,
    mask,
    factor,
    summand,
    RELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """The same of elements that a program holds, in float32."""
    result = finished(value * factor + summand, residual, at, mask, RELU, RESIDUAL)
    tl.store(y + at, result.to(y.dtype.element_ty), mask)


@triton.jit
def load_grad(dy, x, at, mask, factor, summand, RELU: tl.constexpr):
    """The gradient that reaches the line, and x, of some elements."""
    grad = widened(tl.load(dy + at, mask, 0.0))
    value = widened(tl.load(x + at, mask, 0.0))
    return passed(grad, value, factor, summand, RELU), value


@triton.jit
def grad_line(factors, channels, channel, fits):
    """What dx = dy·a + x·b + c is made of, and the summand of the line, whose factor is a, too."""
    a = of_channel(factors, channel, fits)
    b = of_channel(factors + channels, channel, fits)
    c = of_channel(factors + 2 * channels, channel, fits)
    return a, b, c, of_channel(factors + 3 * channels, channel, fits)


@triton.jit
def write_grad(dx, dy, x, at, mask, a, b, c, summand, RELU: tl.constexpr):
    """dx = dy·a + x·b + c of some elements, dy being 0 where a Relu behind was closed."""
    grad, value = load_grad(dy, x, at, mask, a, summand, RELU)
    tl.store(dx + at, (grad * a + value * b + c).to(dx.dtype.element_ty), mask)


@triton.jit
def write_held_grad(dx, grad, value, at, mask, factor, inverse, total, slope, rows):
    """dx = factor·(dy - total/n - x·inverse·slope/n) of elements that a program holds.

    Columns are channels. The mean was taken from x; the slope is Σ dy·x·inverse.
    """
    by = (inverse * slope / rows)[None, :]
    result = factor[None, :] * (grad - (total / rows)[None, :] - value * by)
    tl.store(dx + at, result.to(dx.dtype.element_ty), mask)


@triton.jit
def store_slopes(dscale, dbias, slope, total, channel, fits):
    """Leave the gradients of channels' scales and biases."""
    tl.store(dscale + channel, slope.to(dscale.dtype.element_ty), fits)
    tl.store(dbias + channel, total.to(dbias.dtype.element_ty), fits)
