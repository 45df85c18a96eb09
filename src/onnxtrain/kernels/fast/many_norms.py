"""What many tensors have in common: their norm, and whether they are finite; one launch each."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import chunks as laid_out
from onnxtrain.kernels.fast.chunks import (
    KINDS,
    Tensors,
    groups,
    layout,
    place,
    pointer_to,
    read_any,
    write,
)
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import power


@Compiled
@triton.jit
def _squares(partial, table, chunks, KIND: tl.constexpr, C: tl.constexpr):
    item, start, left = place(chunks, C)
    value = read_any(pointer_to(table, item, start, KIND), left, C)
    tl.store(partial + tl.program_id(0), tl.sum(value * value, 0))


@Compiled
@triton.jit
def _root(results, partial, most, count, C: tl.constexpr):
    """The norm, and the factor that brings it down to ``most``."""
    total = tl.zeros((C,), tl.float64)
    for first in range(0, count, C):
        at = first + tl.arange(0, C)
        total += tl.load(partial + at, at < count, 0.0)
    norm = tl.sqrt(tl.sum(total, 0)).to(tl.float32)
    tl.store(results, norm)
    factor = most / (norm + 1e-6)
    # a norm that is not a number changes nothing
    tl.store(results + 1, tl.where(factor < 1.0, factor, 1.0))


@Compiled
@triton.jit
def _scale(table, chunks, results, KIND: tl.constexpr, C: tl.constexpr):
    factor = tl.load(results + 1)
    if factor < 1.0:
        item, start, left = place(chunks, C)
        data = pointer_to(table, item, start, KIND)
        value = read_any(data, left, C) * factor
        if left >= C:
            write(data, value, left, True, C)
        else:
            write(data, value, left, False, C)


@Compiled
@triton.jit
def _finite(
    flag,
    table,
    chunks,
    INFINITE: tl.constexpr,
    NAN: tl.constexpr,
    KIND: tl.constexpr,
    C: tl.constexpr,
):
    """Clear the flag if the chunk has an infinite number or one that is none."""
    item, start, left = place(chunks, C)
    value = read_any(pointer_to(table, item, start, KIND), left, C)
    if INFINITE and NAN:
        # a product with 0 is not a number then, and so is every sum with it
        total = tl.sum(value * 0.0, 0)
        bad = total != total
    else:
        seen = tl.zeros((C,), tl.int32)
        if INFINITE:
            seen += (tl.abs(value) == float("inf")).to(tl.int32)
        if NAN:
            seen += (value != value).to(tl.int32)
        bad = tl.max(seen, 0) > 0
    if bad:
        tl.store(flag, 0)


def norm(items: Tensors) -> Tensor:
    """√(Σ x²) over all elements of all tensors, in float32."""
    return _norm_and_factor(items, math.inf)[0]


def norm_and_factor(items: Tensors, most: float) -> tuple[Tensor, Tensor]:
    """√(Σ x²) over everything, and min(most / (that + 1e-6), 1), both in float32."""
    norm, factor = _norm_and_factor(items, most).unbind()
    return norm, factor


def _norm_and_factor(items: Tensors, most: float) -> Tensor:
    """The norm and the factor in one tensor; one launch a type, and one more."""
    length, threads = laid_out.READ_CHUNK, laid_out.READ_WARPS
    given = [(group[0].dtype, layout([group], length)) for (group,) in groups(items)]
    total = sum(count for _, (_, _, count) in given)
    partial = torch.empty(total, dtype=torch.float32, device=items[0].device)
    results = torch.empty(2, dtype=torch.float32, device=items[0].device)
    first = 0
    for dtype, (table, chunks, count) in given:
        part = partial[first:] if first else partial
        _squares[(count,)](part, table, chunks, KINDS[dtype], length, num_warps=threads)
        first += count
    _root[(1,)](results, partial, most, total, min(4096, power(max(1, total))), num_warps=8)
    return results


def clip(items: Tensors, most: float) -> None:
    """x *= min(most / (norm + 1e-6), 1), with the norm of all tensors together."""
    found = _norm_and_factor(items, most)
    length, threads = laid_out.READ_CHUNK, laid_out.READ_WARPS
    for (group,) in groups(items):
        table, chunks, count = layout([group], length)
        _scale[(count,)](table, chunks, found, KINDS[group[0].dtype], length, num_warps=threads)


def all_finite(items: Tensors, *, infinite: bool = True, nan: bool = True) -> Tensor:
    """Whether no element is infinite or not a number (each counted only if asked for)."""
    flag = torch.ones((), dtype=torch.bool, device=items[0].device)
    octet = flag.view(torch.uint8)
    length, threads = laid_out.READ_CHUNK, laid_out.READ_WARPS
    for (group,) in groups(items):
        table, chunks, count = layout([group], length)
        kind = KINDS[group[0].dtype]
        _finite[(count,)](octet, table, chunks, infinite, nan, kind, length, num_warps=threads)
    return flag
