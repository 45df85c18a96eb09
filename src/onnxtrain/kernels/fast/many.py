"""Updates of many tensors in one launch: AdamW and SGD; also clipping and checks.

Numbers that change from step to step (learning rate, step, a factor of all gradients, whether to
skip the step) may be device tensors, so that a recorded step reads them anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common import chunks as laid_out
from onnxtrain.kernels.fast.common.chunks import Tensors, laid, place, pointer_to, read, write
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.many_norms import all_finite, clip, factor, norm

Number = float | Tensor

__all__ = [
    "adam_numbers",
    "adam_w",
    "adam_w_by",
    "adamw",
    "all_finite",
    "clip",
    "factor",
    "norm",
    "sgd",
]


@Compiled
@triton.jit
def _adam_w(
    table,
    chunks,
    numbers,
    factor,
    skip,
    tensors,
    rate,
    first_correction,
    second_root,
    epsilon,
    decay,
    later_decay,
    alpha,
    beta,
    rest_of_alpha,
    rest_of_beta,
    DEVICE: tl.constexpr,
    FACTOR: tl.constexpr,
    SKIP: tl.constexpr,
    LATER: tl.constexpr,
    WEIGHT: tl.constexpr,
    GRADIENT: tl.constexpr,
    MOMENT: tl.constexpr,
    COPY: tl.constexpr,
    C: tl.constexpr,
):
    item, start, left = place(chunks, tl.program_id(0))
    if SKIP:
        left = tl.where(tl.load(skip) != 0, 0, left)
    weights = pointer_to(table, item, start, WEIGHT)
    gradients = pointer_to(table, item + tensors, start, GRADIENT)
    firsts = pointer_to(table, item + 2 * tensors, start, MOMENT)
    seconds = pointer_to(table, item + 3 * tensors, start, MOMENT)
    if DEVICE:
        rate = tl.load(numbers)
        first_correction = tl.load(numbers + 1)
        second_root = tl.load(numbers + 2)
        epsilon = tl.load(numbers + 3)
    scale = tl.load(factor).to(tl.float32) if FACTOR else 1.0
    rates = (rate, decay, later_decay, alpha, beta, rest_of_alpha, rest_of_beta)
    corrections = (first_correction, second_root, epsilon, scale)
    lists = (weights, gradients, firsts, seconds)
    if COPY is None:
        copies = weights
    else:
        copies = pointer_to(table, item + 4 * tensors, start, COPY)
    if left >= C:
        _adam_w_chunk(lists, copies, rates, corrections, left, LATER, COPY is not None, True, C)
    elif left > 0:
        _adam_w_chunk(lists, copies, rates, corrections, left, LATER, COPY is not None, False, C)


@triton.jit
def _adam_w_chunk(
    lists,
    copies,
    rates,
    corrections,
    left,
    LATER: tl.constexpr,
    COPY: tl.constexpr,
    WHOLE: tl.constexpr,
    C: tl.constexpr,
):
    weights, gradients, firsts, seconds = lists
    rate, decay, later_decay, alpha, beta, rest_of_alpha, rest_of_beta = rates
    first_correction, second_root, epsilon, scale = corrections
    gradient = read(gradients, left, WHOLE, C)
    weight = read(weights, left, WHOLE, C)
    first = read(firsts, left, WHOLE, C)
    second = read(seconds, left, WHOLE, C)
    gradient = gradient * scale
    first = alpha * first + rest_of_alpha * gradient
    second = beta * second + rest_of_beta * gradient * gradient
    step = first / (first_correction * (tl.sqrt(second) / second_root + epsilon))
    weight = weight - rate * decay * weight - rate * step
    if LATER:
        weight = weight - rate * later_decay * weight
    write(weights, weight, left, WHOLE, C)
    write(firsts, first, left, WHOLE, C)
    write(seconds, second, left, WHOLE, C)
    if COPY:
        write(copies, weight, left, WHOLE, C)


@Compiled
@triton.jit
def _sgd(
    table,
    chunks,
    numbers,
    factor,
    skip,
    tensors,
    rate,
    DEVICE: tl.constexpr,
    FACTOR: tl.constexpr,
    SKIP: tl.constexpr,
    WEIGHT: tl.constexpr,
    GRADIENT: tl.constexpr,
    COPY: tl.constexpr,
    C: tl.constexpr,
):
    item, start, left = place(chunks, tl.program_id(0))
    if SKIP:
        left = tl.where(tl.load(skip) != 0, 0, left)
    if DEVICE:
        rate = tl.load(numbers).to(tl.float32)
    if FACTOR:
        rate = rate * tl.load(factor).to(tl.float32)
    weights = pointer_to(table, item, start, WEIGHT)
    gradients = pointer_to(table, item + tensors, start, GRADIENT)
    if COPY is None:
        copies = weights
    else:
        copies = pointer_to(table, item + 2 * tensors, start, COPY)
    if left >= C:
        _sgd_chunk(weights, gradients, copies, rate, left, COPY is not None, True, C)
    elif left > 0:
        _sgd_chunk(weights, gradients, copies, rate, left, COPY is not None, False, C)


@triton.jit
def _sgd_chunk(
    weights,
    gradients,
    copies,
    rate,
    left,
    COPY: tl.constexpr,
    WHOLE: tl.constexpr,
    C: tl.constexpr,
):
    gradient = read(gradients, left, WHOLE, C)
    weight = read(weights, left, WHOLE, C) - rate * gradient
    write(weights, weight, left, WHOLE, C)
    if COPY:
        write(copies, weight, left, WHOLE, C)


@Compiled
@triton.jit
def _numbers(
    numbers,
    rate,
    step,
    log_alpha,
    log_beta,
    epsilon,
    SCALED: tl.constexpr,
    CORRECTED: tl.constexpr,
):
    first, root = 1.0, 1.0
    if CORRECTED:
        count = tl.load(step).to(tl.float64)
        first = 1.0 - tl.exp(count * log_alpha)
        root = tl.sqrt(1.0 - tl.exp(count * log_beta))
    if SCALED:
        epsilon = epsilon / root
    tl.store(numbers, tl.load(rate).to(tl.float32))
    tl.store(numbers + 1, first)
    tl.store(numbers + 2, root)
    tl.store(numbers + 3, epsilon)


def adamw(
    params: Tensors,
    grads: Tensors,
    moments1: Tensors,
    moments2: Tensors,
    *,
    lr: Number,
    step: Number,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    weight_decay: float = 1e-2,
    decay_last: bool = False,
    correct_bias: bool = True,
    copies: Tensors | None = None,
    factor: Tensor | None = None,
    skip: Tensor | None = None,
) -> bool:
    """One step of AdamW in place; gradients and parameters may differ in type.

    Decay comes before the step, or after it (``decay_last``, where epsilon is added to the root
    that is not corrected). ``copies`` receive the new parameters in their own type. Every gradient
    is multiplied by ``factor``; nothing happens if ``skip`` is not 0. Learning rate and step are
    two numbers or two tensors of one element on the device.

    Whether the tensors could be laid out; nothing is done if they could not.
    """
    numbers: Tensor | tuple[float, ...]
    if isinstance(lr, Tensor) and isinstance(step, Tensor):
        numbers = adam_numbers(lr, step, betas, epsilon, decay_last, correct_bias)
    elif isinstance(lr, Tensor) or isinstance(step, Tensor):
        raise ValueError("lr and step must both be numbers or both be tensors on the device")
    else:
        count = step if correct_bias else math.inf
        root = math.sqrt(1 - betas[1] ** count)
        scaled = epsilon / (root or math.nan) if decay_last else epsilon
        numbers = (lr, 1 - betas[0] ** count, root, scaled)
    decays = (0.0, weight_decay) if decay_last else (weight_decay, 0.0)
    lists = [params, grads, moments1, moments2, *([copies] if copies else [])]
    return adam_w_by(lists, numbers, betas, decays, factor, skip)


def adam_numbers(
    rate: Tensor,
    step: Tensor,
    betas: tuple[float, float],
    epsilon: float,
    scaled: bool,
    corrected: bool,
) -> Tensor:
    """Rate, 1 - alpha^t, √(1 - beta^t), epsilon (by that root if ``scaled``), on the device.

    Computed in float64: in float32 nothing of 1 - 0.999 would be right behind the fifth digit.
    """
    numbers = torch.empty(4, dtype=torch.float32, device=rate.device)
    logarithms = [math.log(beta) if beta > 0 else -math.inf for beta in betas]
    _numbers[(1,)](numbers, rate, step, *logarithms, float(epsilon), scaled, corrected, num_warps=1)
    return numbers


def adam_w(
    lists: Sequence[Tensors],
    rate: float,
    decay: float,
    betas: tuple[float, float],
    corrections: tuple[float, float],
    epsilon: float,
) -> bool:
    """One step over [weights, gradients, first moments, second moments], in place, as ``adamw``.

    The corrections are 1 - alpha^t and √(1 - beta^t).
    """
    return adam_w_by(lists, (rate, *corrections, epsilon), betas, (decay, 0.0))


def adam_w_by(
    lists: Sequence[Tensors],
    numbers: Tensor | tuple[float, ...],
    betas: tuple[float, float],
    decays: tuple[float, float],
    factor: Tensor | None = None,
    skip: Tensor | None = None,
) -> bool:
    """AdamW with the numbers of ``adam_numbers``, and decay before and after the step.

    A fifth list receives the new weights in its own type.
    """
    on_device = isinstance(numbers, Tensor)
    # what is left of 1 is computed here, where it is exact
    fixed = [*map(float, (*decays, *betas, 1 - betas[0], 1 - betas[1]))]
    parts = laid(*lists)
    for kinds, tensors, table, chunks, count in parts or ():
        _adam_w[(count,)](
            table,
            chunks,
            numbers if on_device else table,
            table if factor is None else factor,
            table if skip is None else skip,
            tensors,
            *((0.0,) * 4 if on_device else map(float, numbers)),
            *fixed,
            on_device,
            factor is not None,
            skip is not None,
            decays[1] != 0,
            *kinds[:3],
            kinds[4] if len(kinds) > 4 else None,
            laid_out.CHUNK,
            num_warps=laid_out.WARPS,
        )
    return parts is not None


def sgd(
    params: Tensors,
    grads: Tensors,
    *,
    lr: Number,
    copies: Tensors | None = None,
    factor: Tensor | None = None,
    skip: Tensor | None = None,
) -> bool:
    """w -= lr * g in place, with the options of ``adamw``."""
    on_device = isinstance(lr, Tensor)
    parts = laid(params, grads, *([copies] if copies else []))
    for kinds, tensors, table, chunks, count in parts or ():
        _sgd[(count,)](
            table,
            chunks,
            lr if on_device else table,
            table if factor is None else factor,
            table if skip is None else skip,
            tensors,
            0.0 if on_device else float(lr),
            on_device,
            factor is not None,
            skip is not None,
            *kinds[:2],
            kinds[2] if copies else None,
            laid_out.CHUNK,
            num_warps=laid_out.WARPS,
        )
    return parts is not None
