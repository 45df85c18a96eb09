"""LAMB over many tensors in four launches a combination of types.

The first makes the numbers of each tensor. The next makes Adam's step and adds squares of weights
and steps chunk by chunk, the third has one program a tensor that makes its rate of these sums, and
the last moves the weights, from the end, which is in the cache. Results of a kind lie in one piece
of memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.adam import correction, divisor
from onnxtrain.kernels.fast.common import chunks as laid_out
from onnxtrain.kernels.fast.common.approx import NATIVE, rounded
from onnxtrain.kernels.fast.common.chunks import (
    Part,
    chunks_of,
    piece_of,
    place,
    pointer_to,
    read,
    write,
)
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.launch import both_sums

RATE_CHUNK, RATE_WARPS = 8192, 32
"""Sums of so many chunks are under way at once: a large tensor has tens of thousands of them."""
DIRECTION_REGISTERS = 72
"""With more, which the compiler would take, one program less fits on a multiprocessor."""
NUMBERS = 9
"""Of a tensor: alpha, 1 - alpha, beta, 1 - beta, decay, epsilon, both corrections, the divisor."""
_WIDTH = tl.constexpr(NUMBERS)


class Scalars(NamedTuple):
    """Tensors of one element: rate, and what may be missing."""

    rate: Tensor
    step: Tensor | None
    loss_scale: Tensor | None
    norm: Tensor | None
    update: Tensor | None


class Results(NamedTuple):
    """One piece of memory for all tensors of a kind."""

    weights: Tensor
    steps: Tensor
    first: Tensor
    second: Tensor
    mixed: Tensor | None


@Compiled
@triton.jit
def _numbers(
    memory,
    fixed,
    steps,
    scales,
    norms,
    sums,
    CORRECTED: tl.constexpr,
    SCALED: tl.constexpr,
    NORM: tl.constexpr,
):
    """The numbers of a tensor; instead of corrections fixed ones have logarithms of the betas."""
    row = fixed + tl.program_id(0) * _WIDTH
    numbers = memory + sums + tl.program_id(0) * _WIDTH
    for k in tl.static_range(6):
        tl.store(numbers + k, tl.load(row + k).to(tl.float32))
    for k in tl.static_range(2):
        if CORRECTED:
            tl.store(numbers + 6 + k, correction(tl.load(steps), tl.load(row + 6 + k)))
        else:
            tl.store(numbers + 6 + k, 1.0)
    most = tl.load(row + 8).to(tl.float32)
    tl.store(numbers + 8, divisor(scales, norms, most, SCALED, NORM))


@triton.jit
def _is_finite(x):
    return tl.abs(x) < float("inf")


@Early
@triton.jit
def _direction(
    memory,
    table,
    chunks,
    steps,
    firsts,
    seconds,
    update,
    tensors,
    count,
    SIGNAL: tl.constexpr,
    LISTS: tl.constexpr,
    WEIGHT: tl.constexpr,
    GRADIENT: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    C: tl.constexpr,
):
    """New moments, the step in the type of the gradient, and sums of squares of the chunk."""
    wait()
    item, start, left = place(chunks, tl.program_id(0))
    inputs = (
        pointer_to(table, item, start, WEIGHT),
        pointer_to(table, item + tensors, start, GRADIENT),
        pointer_to(table, item + 2 * tensors, start, FIRST),
        pointer_to(table, item + 3 * tensors, start, SECOND),
    )
    outputs = (
        piece_of(steps, table, item + LISTS * tensors, start),
        piece_of(firsts, table, item + LISTS * tensors, start),
        piece_of(seconds, table, item + LISTS * tensors, start),
    )
    goes = tl.load(update) != 0 if SIGNAL else True
    row = memory + 2 * count + item * _WIDTH
    if left >= C:
        of_weights, of_steps = _direction_chunk(inputs, outputs, row, goes, left, True, C)
    else:
        of_weights, of_steps = _direction_chunk(inputs, outputs, row, goes, left, False, C)
    tl.store(memory + tl.program_id(0), of_weights)
    tl.store(memory + count + tl.program_id(0), of_steps)


@triton.jit
def _direction_chunk(inputs, outputs, row, goes, left, WHOLE: tl.constexpr, C: tl.constexpr):
    weights, gradients, firsts, seconds = inputs
    steps, new_firsts, new_seconds = outputs
    weight, gradient = read(weights, left, WHOLE, C), read(gradients, left, WHOLE, C)
    first, second = read(firsts, left, WHOLE, C), read(seconds, left, WHOLE, C)
    alpha, rest_of_alpha = tl.load(row), tl.load(row + 1)
    beta, rest_of_beta = tl.load(row + 2), tl.load(row + 3)
    decay, epsilon = tl.load(row + 4), tl.load(row + 5)
    first_correction, second_correction = tl.load(row + 6), tl.load(row + 7)
    g = gradient / tl.load(row + 8)
    m = first * alpha + g * rest_of_alpha
    v = second * beta + g * g * rest_of_beta
    d = decay * weight + m / first_correction / (tl.sqrt(v / second_correction) + epsilon)
    finite = _is_finite(d)
    d = rounded(tl.where(finite, d, 0.0), steps.dtype.element_ty)
    write(steps, tl.where(goes, d.to(tl.float32), gradient), left, WHOLE, C)
    write(new_firsts, tl.where(finite & goes, m, first), left, WHOLE, C)
    write(new_seconds, tl.where(finite & goes, v, second), left, WHOLE, C)
    d = d.to(tl.float32)
    return both_sums(weight * weight, d * d, 0, NATIVE)


@Early
@triton.jit
def _rates(memory, chunks, rate, low, high, count, C: tl.constexpr):
    """rate * clamp(|w| / |d|) of a tensor, or the rate itself if one of the norms is 0.

    It is left instead of the tensor's divisor, which nobody needs any more.
    """
    wait()
    item = tl.program_id(0)
    begin, end = chunks_of(chunks, count, item)
    weights, steps = tl.zeros((C,), tl.float64), tl.zeros((C,), tl.float64)
    for start in range(begin, end, C):
        at = start + tl.arange(0, C)
        weights += tl.load(memory + at, at < end, 0.0)
        steps += tl.load(memory + count + at, at < end, 0.0)
    weight, step = both_sums(weights, steps, 0, NATIVE)
    ratio = tl.sqrt(weight / step).to(tl.float32)
    # comparisons leave what is not a number as it is
    ratio = tl.where(ratio > high, high, ratio)
    ratio = tl.where(ratio < low, low, ratio)
    factor = tl.where((weight != 0) & (step != 0), ratio, 1.0)
    taken = tl.load(rate).to(tl.float32) * factor
    tl.store(memory + 2 * count + item * _WIDTH + 8, taken)


@Early
@triton.jit
def _move(
    memory,
    table,
    chunks,
    results,
    steps,
    copies,
    update,
    tensors,
    count,
    SIGNAL: tl.constexpr,
    LISTS: tl.constexpr,
    WEIGHT: tl.constexpr,
    MIXED: tl.constexpr,
    STEPS: tl.constexpr,
    C: tl.constexpr,
):
    """New weights, the step that was taken if it is asked for, and weights of another type."""
    wait()
    item, start, left = place(chunks, count - 1 - tl.program_id(0))
    weights = pointer_to(table, item, start, WEIGHT)
    news = piece_of(results, table, item + LISTS * tensors, start)
    taken = piece_of(steps, table, item + LISTS * tensors, start)
    goes = tl.load(update) != 0 if SIGNAL else True
    if MIXED is None:
        mixed, others = weights, news
    else:
        mixed = pointer_to(table, item + 4 * tensors, start, MIXED)
        others = piece_of(copies, table, item + LISTS * tensors, start)
    lists = (weights, taken, news, mixed, others)
    rate = tl.load(memory + 2 * count + item * _WIDTH + 8)
    if left >= C:
        _move_chunk(lists, rate, goes, left, MIXED is not None, STEPS, True, C)
    else:
        _move_chunk(lists, rate, goes, left, MIXED is not None, STEPS, False, C)


@triton.jit
def _move_chunk(
    lists,
    rate,
    goes,
    left,
    MIXED: tl.constexpr,
    STEPS: tl.constexpr,
    WHOLE: tl.constexpr,
    C: tl.constexpr,
):
    weights, steps, results, mixed, copies = lists
    weight, step = read(weights, left, WHOLE, C), read(steps, left, WHOLE, C)
    delta = step * -rate
    new = weight + delta
    finite = _is_finite(new)
    new = tl.where(finite & goes, new, weight)
    write(results, new, left, WHOLE, C)
    if STEPS:
        # a step that is not taken is the gradient, which was left there
        write(steps, tl.where(goes, tl.where(finite, delta, 0.0), step), left, WHOLE, C)
    if MIXED:
        write(copies, tl.where(goes, new, read(mixed, left, WHOLE, C)), left, WHOLE, C)


def lamb(
    part: Part,
    results: Results,
    fixed: Tensor,
    scalars: Scalars,
    ratios: tuple[float, float],
    with_steps: bool = True,
) -> None:
    """One step of LAMB over lists that were laid out, starts of results being behind addresses.

    They are weights, gradients, both moments, and perhaps weights of another type. Fixed numbers
    are a row a tensor. Results are the inputs if there is an update signal that is 0. What is left
    where steps belong is of no use if these are not asked for.
    """
    kinds, tensors, table, chunks, count = part
    sums = 2 * count
    memory = torch.empty(sums + NUMBERS * tensors, dtype=torch.float32, device=table.device)
    rate, step, scale, norm, update = scalars
    signal, signalled = table if update is None else update, update is not None
    _numbers[(tensors,)](
        memory,
        fixed,
        *(fixed if t is None else t for t in (step, scale, norm)),
        sums,
        *(t is not None for t in (step, scale, norm)),
        num_warps=1,
    )
    _direction[(count,)](
        memory,
        table,
        chunks,
        *results[1:4],
        signal,
        tensors,
        count,
        signalled,
        len(kinds),
        *kinds[:4],
        laid_out.CHUNK,
        num_warps=laid_out.WARPS,
        maxnreg=DIRECTION_REGISTERS,
    )
    low, high = map(float, ratios)
    by_tensor = _rates[(tensors,)]
    by_tensor(memory, chunks, rate, low, high, count, RATE_CHUNK, num_warps=RATE_WARPS)
    _move[(count,)](
        memory,
        table,
        chunks,
        results.weights,
        results.steps,
        results.weights if results.mixed is None else results.mixed,
        signal,
        tensors,
        count,
        signalled,
        len(kinds),
        kinds[0],
        None if results.mixed is None else kinds[4],
        with_steps,
        laid_out.CHUNK,
        num_warps=laid_out.WARPS,
    )
