"""How the programs of one row tell each other their partial results while all of them run.

Those of a cluster send them to each other. Where they are too many for one, each leaves a pair of
numbers as one word, which is never zero, and waits until no word of its row is zero. A word is
written whole, so nothing else needs an order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.cluster import opened, swapped
from onnxtrain.kernels.fast.launch import multiprocessors

LEAST = 1 << 22
"""Elements below which a wait takes longer than torch."""
LAUNCHES = 4
"""So many launches may run at once, of each of which one row's programs wait for the last."""


def fits(parts: int, like: Tensor, together: int) -> bool:
    """Whether all programs of a row run at once, if a multiprocessor has so many together."""
    most = multiprocessors(like.device) * together // LAUNCHES
    return parts == 1 or (parts <= most and like.numel() >= LEAST)


def board(words: int, device: torch.device) -> Tensor:
    """Memory for a launch's words, all zero, behind the count of programs that have begun."""
    return torch.zeros(1 + words, dtype=torch.int64, device=device)


@triton.jit
def turn(words):
    """Number of this program in the order in which programs began.

    Programs wait for others of their row only, and those have begun or are next in line, so some
    row can always be finished.
    """
    return tl.atomic_add(words, 1, sem="relaxed")


@triton.jit
def leave(word, first, second):
    """Write a pair of float32 numbers, not both zero, where the others look for it."""
    high = first.to(tl.int32, bitcast=True).to(tl.int64) << 32
    tl.atomic_xchg(word, high | second.to(tl.uint32, bitcast=True).to(tl.int64), sem="relaxed")


@triton.jit
def leave_one(word, number):
    """The same for a single number, which may be zero, as the second of a pair."""
    low = number.to(tl.uint32, bitcast=True).to(tl.int64)
    tl.atomic_xchg(word, low | (1 << 32), sem="relaxed")


@triton.jit
def collect(word, there):
    """The pairs that all programs of a row have left, once all have; ones where none are."""
    found = tl.load(word, there, 0x3F8000003F800000, volatile=True)
    while tl.sum((found == 0).to(tl.int32)) > 0:
        found = tl.load(word, there, 0x3F8000003F800000, volatile=True)
    first = (found >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return first, found.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def entered(words, CLUSTERED: tl.constexpr):
    """Number of this program, and where its box is, if it is one of a cluster."""
    if CLUSTERED:
        number, box = tl.program_id(0).to(tl.int64), opened()
    else:
        number, box = turn(words), 0
    return number, box


@triton.jit
def of_row(
    words,
    box,
    number,
    row,
    first,
    second,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    CLUSTERED: tl.constexpr,
):
    """The pairs of all parts of a row, of which this program has one; -∞ and 0 where none are."""
    if CLUSTERED:
        firsts, seconds = swapped(box, first, second, P)
    else:
        leave(words + 1 + number, first, second)
        there = tl.arange(0, P) < PARTS
        firsts, seconds = collect(words + 1 + row * PARTS + tl.arange(0, P), there)
        firsts = tl.where(there, firsts, float("-inf"))
        seconds = tl.where(there, seconds, 0.0)
    return firsts, seconds
