"""Work over many tensors in one launch: sums of squares, scaling, AdamW.

The host lays out once which chunk of which tensor each program takes; the layout is kept as long
as the tensors stay where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.launch import power

CHUNK = 1024
KINDS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def aligned(*lists: Sequence[Tensor]) -> bool:
    """Whether every tensor begins where wide loads may begin, and each list has one type."""
    return all(
        all(map(Tensor.is_contiguous, items))
        and len({t.dtype for t in items}) == 1
        and all(address % 16 == 0 for address in map(Tensor.data_ptr, items))
        for items in lists
    )


def layout(lists: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor, int]:
    """Addresses (list by list), chunks (tensor, first element, size), how many chunks."""
    addresses = tuple(address for items in lists for address in map(Tensor.data_ptr, items))
    return _layout(addresses, tuple(map(Tensor.numel, lists[0])), lists[0][0].device)


@functools.lru_cache(maxsize=64)
def _layout(
    addresses: tuple[int, ...], sizes: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor, int]:
    chunks = [
        (item, start, size) for item, size in enumerate(sizes) for start in range(0, size, CHUNK)
    ]
    table = torch.tensor(addresses, dtype=torch.int64).to(device)
    return table, torch.tensor(chunks, dtype=torch.int64).to(device), len(chunks)


@triton.jit
def _pointer(table, at, start, KIND: tl.constexpr):
    """Where a chunk of a tensor begins; one address for all, so that loads are wide."""
    address = tl.load(table + at) + start * (KIND.primitive_bitwidth // 8)
    return tl.multiple_of(address, 16).to(tl.pointer_type(KIND))


@triton.jit
def _squares(partial, table, chunks, KIND: tl.constexpr, C: tl.constexpr):
    chunk = tl.program_id(0)
    start = tl.load(chunks + chunk * 3 + 1)
    data = _pointer(table, tl.load(chunks + chunk * 3), start, KIND)
    at = tl.arange(0, C)
    value = tl.load(data + at, at < tl.load(chunks + chunk * 3 + 2) - start, 0.0).to(tl.float32)
    tl.store(partial + chunk, tl.sum(value * value, 0))


@triton.jit
def _root(norm, partial, count, C: tl.constexpr):
    total = tl.zeros((C,), tl.float64)
    for first in range(0, count, C):
        at = first + tl.arange(0, C)
        total += tl.load(partial + at, at < count, 0.0)
    tl.store(norm, tl.sqrt(tl.sum(total, 0)).to(tl.float32))


@triton.jit
def _scale(table, chunks, norm, most, KIND: tl.constexpr, C: tl.constexpr):
    factor = most / (tl.load(norm) + 1e-6)
    if factor < 1.0:
        chunk = tl.program_id(0)
        start = tl.load(chunks + chunk * 3 + 1)
        data = _pointer(table, tl.load(chunks + chunk * 3), start, KIND)
        at = tl.arange(0, C)
        mask = at < tl.load(chunks + chunk * 3 + 2) - start
        value = tl.load(data + at, mask, 0.0)
        tl.store(data + at, (value.to(tl.float32) * factor).to(value.dtype), mask)


@triton.jit
def _adam_w(
    table,
    chunks,
    tensors,
    rate,
    decay,
    alpha,
    beta,
    rest_of_alpha,
    rest_of_beta,
    first_correction,
    second_root,
    epsilon,
    WEIGHT: tl.constexpr,
    GRADIENT: tl.constexpr,
    MOMENT: tl.constexpr,
    C: tl.constexpr,
):
    chunk = tl.program_id(0)
    item = tl.load(chunks + chunk * 3)
    start = tl.load(chunks + chunk * 3 + 1)
    at = tl.arange(0, C)
    mask = at < tl.load(chunks + chunk * 3 + 2) - start
    weights = _pointer(table, item, start, WEIGHT) + at
    firsts = _pointer(table, item + 2 * tensors, start, MOMENT) + at
    seconds = _pointer(table, item + 3 * tensors, start, MOMENT) + at
    gradients = _pointer(table, item + tensors, start, GRADIENT) + at
    gradient = tl.load(gradients, mask, 0.0).to(tl.float32)
    weight = tl.load(weights, mask, 0.0).to(tl.float32)
    first = tl.load(firsts, mask, 0.0).to(tl.float32)
    second = tl.load(seconds, mask, 0.0).to(tl.float32)
    first = alpha * first + rest_of_alpha * gradient
    second = beta * second + rest_of_beta * gradient * gradient
    step = first / (first_correction * (tl.sqrt(second) / second_root + epsilon))
    weight = weight - rate * decay * weight - rate * step
    tl.store(weights, weight.to(WEIGHT), mask)
    tl.store(firsts, first.to(MOMENT), mask)
    tl.store(seconds, second.to(MOMENT), mask)


def norm(items: Sequence[Tensor]) -> Tensor:
    """√(Σ x²) over all elements of all tensors, in float32."""
    table, chunks, count = layout([items])
    partial = torch.empty(count, dtype=torch.float32, device=items[0].device)
    result = torch.empty((), dtype=torch.float32, device=items[0].device)
    kind = KINDS[items[0].dtype]
    _squares[(count,)](partial, table, chunks, kind, CHUNK, num_warps=4)
    _root[(1,)](result, partial, count, min(4096, power(count)), num_warps=8)
    return result


def clip(items: Sequence[Tensor], most: float) -> None:
    """x *= min(most / (norm + 1e-6), 1), with the norm of all tensors together."""
    found = norm(items)
    table, chunks, count = layout([items])
    _scale[(count,)](table, chunks, found, most, KINDS[items[0].dtype], CHUNK, num_warps=4)


def adam_w(
    lists: Sequence[Sequence[Tensor]],
    rate: float,
    decay: float,
    betas: tuple[float, float],
    corrections: tuple[float, float],
    epsilon: float,
) -> None:
    """One step over [weights, gradients, first moments, second moments], in place.

    The corrections are 1 - alpha^t and √(1 - beta^t).
    """
    table, chunks, count = layout(lists)
    kinds = [KINDS[lists[i][0].dtype] for i in (0, 1, 2)]
    # what is left of 1 is computed here, where it is exact
    rests = (1 - betas[0], 1 - betas[1])
    numbers = (rate, decay, *betas, *rests, *corrections, epsilon)
    _adam_w[(count,)](table, chunks, len(lists[0]), *numbers, *kinds, CHUNK, num_warps=4)
