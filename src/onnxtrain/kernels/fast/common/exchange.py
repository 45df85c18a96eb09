"""How the programs of one row tell each other their partial results while all of them run.

Those of a cluster send them to each other. Without clusters, each leaves a pair of numbers as one
word, which is never zero, and waits until no word of its row is zero; so do the clusters of a row
that is too long for one. A word is written whole, so nothing else needs an order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import LOG2_E, product, two_to
from onnxtrain.kernels.fast.common.axis import Parts
from onnxtrain.kernels.fast.common.cluster import numbered, opened, swapped
from onnxtrain.kernels.fast.common.launch import multiprocessors
from onnxtrain.kernels.fast.common.scratch import Memory

LEAST = 1 << 22
"""Elements below which a wait takes longer than torch."""
WARP = tl.constexpr(32)
"""Words up to which each warp has all of them, and waits for them by itself."""
LAUNCHES = 4
"""So many launches may run at once, of each of which one row's programs wait for the last."""


def fits(parts: int, like: Tensor, together: int) -> bool:
    """Whether all programs of a row run at once, if a multiprocessor has so many together."""
    most = multiprocessors(like.device) * together // LAUNCHES
    return parts == 1 or (parts <= most and like.numel() >= LEAST)


def board(words: int, device: torch.device) -> Tensor:
    """Memory for a launch's words, all zero, behind the count of programs that have begun."""
    return torch.zeros(1 + words, dtype=torch.int64, device=device)


WORDS = Memory(lambda sizes, device: board(sizes[0], device), 1 << 22)
"""Words of clusters, which make all of theirs zero again for the next launch."""


def words_for(rows: int, cut: Parts, like: Tensor) -> Tensor:
    """Memory for the words of all rows, which one cluster a row does without."""
    if cut.at_once:
        return like
    if cut.together == 1:
        return board(rows * cut.number, like.device)
    return WORDS.of((rows * cut.number * (cut.number // cut.together),), like.device)


@triton.jit
def turn(words):
    """Number of this program in the order in which programs began.

    Programs wait for others of their row only, and those have begun or are next in line, so some
    row can always be finished.
    """
    return tl.atomic_add(words, 1, sem="relaxed")


@triton.jit
def leave(word, first, second, there=None):
    """Write a pair of float32 numbers, not both zero, where the others look for it."""
    high = first.to(tl.int32, bitcast=True).to(tl.int64) << 32
    pair = high | second.to(tl.uint32, bitcast=True).to(tl.int64)
    tl.atomic_xchg(word, pair, there, sem="relaxed")


@triton.jit
def leave_one(word, number):
    """The same for a single number, which may be zero, as the second of a pair."""
    low = number.to(tl.uint32, bitcast=True).to(tl.int64)
    tl.atomic_xchg(word, low | (1 << 32), sem="relaxed")


@triton.jit
def _marked(number):
    """The same number as one that is not zero bit for bit."""
    bits = number.to(tl.int32, bitcast=True)
    return tl.where(bits == 0, -(1 << 31), bits).to(tl.float32, bitcast=True)


@triton.jit
def collect(word, there):
    """The pairs that all programs of a row have left, once all have; ones where none are."""
    found = tl.load(word, there, 0x3F8000003F800000, volatile=True)
    while tl.sum((found == 0).to(tl.int32)) > 0:
        found = tl.load(word, there, 0x3F8000003F800000, volatile=True)
    if found.numel > WARP:
        # warps may have the same words, each as it has read them, and one has spoken for all
        again = tl.load(word, there, 0x3F8000003F800000, volatile=True)
        found = tl.where(found == 0, again, found)
    first = (found >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return first, found.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def entered(words, PARTS: tl.constexpr, S: tl.constexpr):
    """Row and part of this program, and where its box is, if it is one of S in a cluster."""
    box = 0
    if S == 1:
        number = turn(words)
    elif S == PARTS:
        number = tl.program_id(0).to(tl.int64)
        box = opened()
    else:
        cluster = numbered(words, tl.num_programs(0) // S).to(tl.int64)
        number = cluster * S + tl.program_id(0) % S
        box = opened()
    return number // PARTS, (number % PARTS).to(tl.int32), box


@triton.jit
def pairs_of(
    words,
    box,
    row,
    part,
    first,
    second,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    S: tl.constexpr,
):
    """The pairs of all parts of a row, which may be any numbers; zeros where none are.

    Those of a row are one cluster, or each is alone.
    """
    there = tl.arange(0, P) < PARTS
    if S == 1:
        own = words + 1 + row * PARTS
        leave(own + part, _marked(first), second)
        firsts, seconds = collect(own + tl.arange(0, P), there)
    else:
        firsts, seconds = swapped(box, first, second, P)
    return tl.where(there, firsts, 0.0), tl.where(there, seconds, 0.0)


@triton.jit
def joined(firsts, seconds):
    """The pair of all: the largest value, and the sum of what was summed below it."""
    top = tl.max(firsts, 0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    return top, tl.sum(product(seconds, two_to((firsts - safe) * LOG2_E)), 0)


@triton.jit
def of_row(
    words,
    box,
    row,
    part,
    first,
    second,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    S: tl.constexpr,
):
    """The pairs of all parts of a row, or of its clusters; -∞ and 0 where none are."""
    if S == 1:
        leave(words + 1 + row * PARTS + part, first, second)
        there = tl.arange(0, P) < PARTS
        firsts, seconds = _collected(words + 1 + row * PARTS + tl.arange(0, P), there)
    else:
        firsts, seconds = swapped(box, first, second, S)
        if S < PARTS:
            first, second = joined(firsts, seconds)
            firsts, seconds = _of_clusters(words, row, part, first, second, PARTS // S, P // S, S)
    return firsts, seconds


@triton.jit
def _of_clusters(
    words, row, part, first, second, G: tl.constexpr, P: tl.constexpr, S: tl.constexpr
):
    """The pairs of the G clusters of a row.

    Each program has a word of every cluster for itself, so none is read by two, and clears them.
    """
    rank, cluster, every = part % S, part // S, tl.arange(0, P)
    there = every < G
    leave(words + 1 + ((row * G + every) * S + rank) * G + cluster, first, second, there)
    own = words + 1 + ((row * G + cluster) * S + rank) * G + every
    firsts, seconds = _collected(own, there)
    tl.debug_barrier()  # all warps have seen them
    tl.store(own, tl.zeros((P,), tl.int64), there)
    return firsts, seconds


@triton.jit
def _collected(word, there):
    firsts, seconds = collect(word, there)
    return tl.where(there, firsts, float("-inf")), tl.where(there, seconds, 0.0)
