"""LAMB over many tensors in three launches a combination of types.

The first makes Adam's step and adds squares of weights and steps chunk by chunk, the second has one
program a tensor that makes its rate of these sums, and the third moves the weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import chunks as laid_out
from onnxtrain.kernels.fast.chunks import (
    KINDS,
    Tensors,
    chunks_of,
    layout,
    place,
    pointer_to,
    read,
    write,
)
from onnxtrain.kernels.fast.compiled import Compiled

NUMBERS = 9
"""Of a tensor: alpha, 1 - alpha, beta, 1 - beta, decay, epsilon, both corrections, the divisor."""
_WIDTH = tl.constexpr(NUMBERS)


@triton.jit
def _is_finite(x):
    return tl.abs(x) < float("inf")


@Compiled
@triton.jit
def _direction(
    partial,
    table,
    chunks,
    numbers,
    update,
    tensors,
    count,
    SIGNAL: tl.constexpr,
    WEIGHT: tl.constexpr,
    GRADIENT: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    C: tl.constexpr,
):
    """New moments, the step in the type of the gradient, and sums of squares of the chunk."""
    item, start, left = place(chunks, C)
    inputs = (
        pointer_to(table, item, start, WEIGHT),
        pointer_to(table, item + tensors, start, GRADIENT),
        pointer_to(table, item + 2 * tensors, start, FIRST),
        pointer_to(table, item + 3 * tensors, start, SECOND),
    )
    outputs = (
        pointer_to(table, item + 4 * tensors, start, GRADIENT),
        pointer_to(table, item + 5 * tensors, start, FIRST),
        pointer_to(table, item + 6 * tensors, start, SECOND),
    )
    goes = tl.load(update) != 0 if SIGNAL else True
    row = numbers + item * _WIDTH
    if left >= C:
        weights, steps = _direction_chunk(inputs, outputs, row, goes, left, True, C)
    else:
        weights, steps = _direction_chunk(inputs, outputs, row, goes, left, False, C)
    tl.store(partial + tl.program_id(0), weights)
    tl.store(partial + count + tl.program_id(0), steps)


@triton.jit
def _direction_chunk(inputs, outputs, row, goes, left, WHOLE: tl.constexpr, C: tl.constexpr):
    weights, gradients, firsts, seconds = inputs
    steps, new_firsts, new_seconds = outputs
    weight, gradient = read(weights, left, WHOLE, C), read(gradients, left, WHOLE, C)
    first, second = read(firsts, left, WHOLE, C), read(seconds, left, WHOLE, C)
    g = gradient / tl.load(row + 8)
    m = first * tl.load(row) + g * tl.load(row + 1)
    v = second * tl.load(row + 2) + g * g * tl.load(row + 3)
    root = tl.sqrt(v / tl.load(row + 7)) + tl.load(row + 5)
    d = tl.load(row + 4) * weight + m / tl.load(row + 6) / root
    finite = _is_finite(d)
    d = tl.where(finite, d, 0.0).to(steps.dtype.element_ty)
    write(steps, tl.where(goes, d.to(tl.float32), gradient), left, WHOLE, C)
    write(new_firsts, tl.where(finite & goes, m, first), left, WHOLE, C)
    write(new_seconds, tl.where(finite & goes, v, second), left, WHOLE, C)
    d = d.to(tl.float32)
    return tl.sum(weight * weight, 0), tl.sum(d * d, 0)


@Compiled
@triton.jit
def _rates(rates, partial, chunks, rate, low, high, count, C: tl.constexpr):
    """rate * clamp(|w| / |d|) of a tensor, or the rate itself if one of the norms is 0."""
    item = tl.program_id(0)
    begin, end = chunks_of(chunks, count, item)
    weights, steps = tl.zeros((C,), tl.float64), tl.zeros((C,), tl.float64)
    for start in range(begin, end, C):
        at = start + tl.arange(0, C)
        weights += tl.load(partial + at, at < end, 0.0)
        steps += tl.load(partial + count + at, at < end, 0.0)
    weight, step = tl.sum(weights, 0), tl.sum(steps, 0)
    ratio = tl.sqrt(weight / step).to(tl.float32)
    # comparisons leave what is not a number as it is
    ratio = tl.where(ratio > high, high, ratio)
    ratio = tl.where(ratio < low, low, ratio)
    factor = tl.where((weight != 0) & (step != 0), ratio, 1.0)
    tl.store(rates + item, tl.load(rate) * factor)


@Compiled
@triton.jit
def _move(
    table,
    chunks,
    rates,
    update,
    tensors,
    SIGNAL: tl.constexpr,
    WEIGHT: tl.constexpr,
    GRADIENT: tl.constexpr,
    MIXED: tl.constexpr,
    C: tl.constexpr,
):
    """New weights, the step that was taken, and weights of another type."""
    item, start, left = place(chunks, C)
    weights = pointer_to(table, item, start, WEIGHT)
    steps = pointer_to(table, item + 4 * tensors, start, GRADIENT)
    results = pointer_to(table, item + 7 * tensors, start, WEIGHT)
    goes = tl.load(update) != 0 if SIGNAL else True
    if MIXED is None:
        mixed, copies = weights, results
    else:
        mixed = pointer_to(table, item + 8 * tensors, start, MIXED)
        copies = pointer_to(table, item + 9 * tensors, start, MIXED)
    lists, rate = (weights, steps, results, mixed, copies), tl.load(rates + item)
    if left >= C:
        _move_chunk(lists, rate, goes, left, MIXED is not None, True, C)
    else:
        _move_chunk(lists, rate, goes, left, MIXED is not None, False, C)


@triton.jit
def _move_chunk(lists, rate, goes, left, MIXED: tl.constexpr, WHOLE: tl.constexpr, C: tl.constexpr):
    weights, steps, results, mixed, copies = lists
    weight, step = read(weights, left, WHOLE, C), read(steps, left, WHOLE, C)
    delta = step * -rate
    new = weight + delta
    finite = _is_finite(new)
    new = tl.where(finite & goes, new, weight)
    write(results, new, left, WHOLE, C)
    # a step that is not taken is the gradient, which was left there
    write(steps, tl.where(goes, tl.where(finite, delta, 0.0), step), left, WHOLE, C)
    if MIXED:
        write(copies, tl.where(goes, new, read(mixed, left, WHOLE, C)), left, WHOLE, C)


def takes(lists: list[Tensors]) -> bool:
    """Whether these lists, all of one type each, can be laid out for the kernels."""
    return lists[0][0].dtype is torch.float32 and laid_out.takes(*lists)


def lamb(
    lists: list[Tensors],
    numbers: Tensor,
    rate: Tensor,
    ratios: tuple[float, float],
    update: Tensor | None,
) -> None:
    """One step of LAMB over lists that have no empty tensors, each of one type.

    They are weights, gradients, both moments, then the memory of results: steps, both moments,
    weights; then perhaps weights of another type and their results. Numbers are those of
    ``NUMBERS``, a row a tensor; the rate has one element. Results are the inputs if update is 0.
    """
    table, chunks, count = layout(lists)
    device, tensors = table.device, len(lists[0])
    sizes = torch.empty(2 * count + tensors, dtype=torch.float32, device=device)
    rates = sizes[2 * count :]
    kinds = [KINDS[items[0].dtype] for items in lists]
    signal = table if update is None else update
    _direction[(count,)](
        sizes,
        table,
        chunks,
        numbers,
        signal,
        tensors,
        count,
        update is not None,
        *kinds[:4],
        laid_out.CHUNK,
        num_warps=laid_out.WARPS,
    )
    _rates[(tensors,)](rates, sizes, chunks, rate, *ratios, count, 1024, num_warps=4)
    mixed = kinds[8] if len(lists) > 8 else None
    _move[(count,)](
        table,
        chunks,
        rates,
        signal,
        tensors,
        update is not None,
        *kinds[:2],
        mixed,
        laid_out.CHUNK,
        num_warps=laid_out.WARPS,
    )
