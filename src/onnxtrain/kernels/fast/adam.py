"""Adam of one parameter in one pass; rate, step, scales and the signal stay on the device."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv

BLOCK, WARPS = 1024, 4


class Form(NamedTuple):
    """The attributes of Adam; decay is subtracted apart from the step if it is ``decoupled``."""

    alpha: float
    beta: float
    epsilon: float
    decay: float
    max_norm: float
    corrected: bool
    decoupled: bool


class Scalars(NamedTuple):
    """Tensors of one element: rate, step, and what may be missing."""

    rate: Tensor
    step: Tensor
    loss_scale: Tensor | None
    norm: Tensor | None
    signal: Tensor | None


class Lists(NamedTuple):
    """Weights, gradient, both moments, and weights of another type: a parameter or its results."""

    weights: Tensor
    gradient: Tensor | None
    first: Tensor
    second: Tensor
    mixed: Tensor | None


@triton.jit
def correction(step, logarithm):
    """1 - beta^t from step 1 on, and 1 before, of the logarithm of beta."""
    power = tl.exp(step.to(tl.float64) * logarithm)
    return tl.where(step > 0, 1.0 - power, 1.0).to(tl.float32)


@triton.jit
def divisor(scales, norms, most, SCALED: tl.constexpr, NORM: tl.constexpr):
    """The loss scale, or norm / most where the norm is above what that allows."""
    scale = tl.load(scales).to(tl.float32) if SCALED else 1.0
    if NORM:
        norm = tl.load(norms).to(tl.float32)
        scale = tl.where(norm > scale * most, norm / most, scale)
    return scale


@Compiled
@triton.jit
def _adam(
    new_weights,
    new_gradients,
    new_firsts,
    new_seconds,
    new_mixed,
    weights,
    gradients,
    firsts,
    seconds,
    mixed,
    rates,
    steps,
    scales,
    norms,
    signals,
    count,
    alpha,
    rest_of_alpha,
    log_alpha,
    beta,
    rest_of_beta,
    log_beta,
    epsilon,
    decay,
    most,
    CORRECTED: tl.constexpr,
    DECOUPLED: tl.constexpr,
    SCALED: tl.constexpr,
    NORM: tl.constexpr,
    SIGNAL: tl.constexpr,
    MIXED: tl.constexpr,
    TAKEN: tl.constexpr,
    B: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = at < count
    goes = tl.load(signals) != 0 if SIGNAL else True
    rate = tl.load(rates).to(tl.float32)
    w = tl.load(weights + at, there, 0.0)
    gradient = tl.load(gradients + at, there, 0.0).to(tl.float32)
    first = tl.load(firsts + at, there, 0.0).to(tl.float32)
    second = tl.load(seconds + at, there, 0.0).to(tl.float32)
    g = gradient / divisor(scales, norms, most, SCALED, NORM)
    m = first * alpha + g * rest_of_alpha
    v = second * beta + g * g * rest_of_beta
    if CORRECTED:
        step = tl.load(steps)
        c1, c2 = correction(step, log_alpha), correction(step, log_beta)
    else:
        c1, c2 = 1.0, 1.0
    if DECOUPLED:
        length = rate * tl.sqrt(c2) / c1 if CORRECTED else rate
        u = length * m / (tl.sqrt(v) + epsilon)
        delta = -u - rate * decay * (w - u)
    else:
        delta = -rate * (m / c1 / (tl.sqrt(v / c2) + epsilon) + decay * w)
    new = tl.where(goes, w + delta, w)
    tl.store(new_weights + at, new, there)
    if TAKEN:
        taken = tl.where(goes, delta, gradient)
        tl.store(new_gradients + at, taken.to(new_gradients.dtype.element_ty), there)
    m, v = tl.where(goes, m, first), tl.where(goes, v, second)
    tl.store(new_firsts + at, m.to(new_firsts.dtype.element_ty), there)
    tl.store(new_seconds + at, v.to(new_seconds.dtype.element_ty), there)
    if MIXED:
        old = tl.load(mixed + at, there, 0.0)
        kept = tl.where(goes, new.to(old.dtype), old)
        tl.store(new_mixed + at, kept, there)


def takes(given: Lists, scalars: Scalars) -> bool:
    """Whether weights are float32 and all numbers are where the kernel reads them."""
    return given.weights.dtype is torch.float32 and all(t is None or t.is_cuda for t in scalars)


def adam(results: Lists, given: Lists, scalars: Scalars, form: Form) -> None:
    """Write new values of a parameter, perhaps over the old ones; a step only if there is room.

    They are the old ones, and the step is the gradient, if the signal is false.
    """
    weights, gradient, count = given.weights, given.gradient, given.weights.numel()
    _adam[(cdiv(count, BLOCK),)](
        results.weights,
        weights if results.gradient is None else results.gradient,
        results.first,
        results.second,
        weights if results.mixed is None else results.mixed,
        weights,
        gradient,
        given.first,
        given.second,
        weights if given.mixed is None else given.mixed,
        *(weights if t is None else t for t in scalars),
        count,
        *_powers(form.alpha),
        *_powers(form.beta),
        *map(float, (form.epsilon, form.decay, form.max_norm)),
        form.corrected,
        form.decoupled,
        scalars.loss_scale is not None,
        scalars.norm is not None,
        scalars.signal is not None,
        given.mixed is not None,
        results.gradient is not None,
        BLOCK,
        num_warps=WARPS,
    )


def _powers(beta: float) -> tuple[float, float, float]:
    """Beta, 1 - beta, and its logarithm: in float32 nothing of 1 - 0.999^t would be right."""
    return float(beta), 1 - beta, math.log(beta) if beta > 0 else -math.inf
