"""What many tensors have in common: their norm, and whether they are finite; one launch each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common import chunks as laid_out
from onnxtrain.kernels.fast.common.chunks import (
    Part,
    Tensors,
    laid,
    place,
    pointer_to,
    read_any,
    write,
)
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.launch import power

ROOT_CHUNK, ROOT_WARPS = 16384, 16
"""Sums of so many chunks are under way at once."""


@Compiled
@triton.jit
def _squares(results, table, chunks, first, KIND: tl.constexpr, C: tl.constexpr):
    item, start, left = place(chunks, tl.program_id(0))
    value = read_any(pointer_to(table, item, start, KIND), left, C)
    tl.store(results + first + tl.program_id(0), tl.sum(value * value, 0))


@Early
@triton.jit
def _root(results, most, count, C: tl.constexpr):
    """The norm, and the factor that brings it down to ``most``; sums of squares lie behind."""
    wait()
    total = tl.zeros((C,), tl.float64)
    for first in range(0, count, C):
        at = first + tl.arange(0, C)
        total += tl.load(results + 4 + at, at < count, 0.0)
    norm = tl.sqrt(tl.sum(total, 0)).to(tl.float32)
    tl.store(results, norm)
    factor = most / (norm + 1e-6)
    # a norm that is not a number changes nothing
    tl.store(results + 1, tl.where(factor < 1.0, factor, 1.0))


@Early
@triton.jit
def _scale(table, chunks, results, KIND: tl.constexpr, C: tl.constexpr):
    wait()
    factor = tl.load(results + 1)
    if factor < 1.0:
        # from the end, of which the cache still has what was read last
        item, start, left = place(chunks, tl.num_programs(0) - 1 - tl.program_id(0))
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
    item, start, left = place(chunks, tl.program_id(0))
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
        tl.store(flag, False)


def norm(items: Tensors) -> Tensor | None:
    """√(Σ x²) over all elements of all tensors, in float32; None if they cannot be laid out."""
    parts = laid(items)
    return _norm_and_factor(parts, math.inf)[0] if parts else None


def factor(items: Tensors, most: float) -> Tensor | None:
    """min(most / (norm + 1e-6), 1), with the norm of all tensors together, in float32."""
    parts = laid(items)
    return _norm_and_factor(parts, most)[1] if parts else None


def _norm_and_factor(parts: Sequence[Part], most: float) -> Tensor:
    """The norm and the factor in one tensor; one launch a type, and one more."""
    length, threads = laid_out.READ_CHUNK, laid_out.READ_WARPS
    total, device = sum(part.programs for part in parts), parts[0].table.device
    # the results come first, where an address is whole
    results = torch.empty(4 + total, dtype=torch.float32, device=device)
    first = 4
    for (kind,), _, table, chunks, count in parts:
        _squares[(count,)](results, table, chunks, first, kind, length, num_warps=threads)
        first += count
    block = min(ROOT_CHUNK, power(total))
    _root[(1,)](results, float(most), total, block, num_warps=ROOT_WARPS)
    return results


def clip(items: Tensors, most: float) -> bool:
    """x *= min(most / (norm + 1e-6), 1), with the norm of all tensors together.

    Whether they could be laid out; nothing is done if they could not.
    """
    parts = laid(items)
    if not parts:
        return False
    found = _norm_and_factor(parts, most)
    length, threads = laid_out.READ_CHUNK, laid_out.READ_WARPS
    for (kind,), _, table, chunks, count in parts:
        _scale[(count,)](table, chunks, found, kind, length, num_warps=threads)
    return True


def all_finite(items: Tensors, *, infinite: bool = True, nan: bool = True) -> Tensor | None:
    """Whether no element is infinite or not a number (each counted only if asked for).

    None if the tensors cannot be laid out.
    """
    parts = laid(items)
    if not parts:
        return None
    flag = torch.ones((), dtype=torch.bool, device=parts[0].table.device)
    length, threads = laid_out.READ_CHUNK, laid_out.READ_WARPS
    for (kind,), _, table, chunks, count in parts:
        _finite[(count,)](flag, table, chunks, infinite, nan, kind, length, num_warps=threads)
    return flag
