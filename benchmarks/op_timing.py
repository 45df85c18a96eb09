"""How long calls take: on a GPU whatever the host is busy with, on a CPU by the clock."""

from __future__ import annotations

import functools
import gc
import math
import statistics
import time

import torch
from torch import Tensor

import op_row
from op_row import Call

CLEARED = 3 << 28
"""Bytes that are written between calls: many times a cache, and work for as long as a host needs
to launch the next call, even a slow one."""
ROUNDS = {0.05: 3, 0.015: 6}
"""How often calls that take less than so many milliseconds are measured, in turn with peers."""
SORTED_OUT = 4
"""One of so many calls is left out as too short and one as too long, and the mean of the others is
taken: the clock of an H200 ticks every 32 ns, in which a median is 0.7 % of a short call off."""
CHANCE = 0.05
"""What happens less often than that is not taken for chance."""
FEWEST, ROUNDS_ON_CPU = 5, 3
"""Calls that are measured by the clock, however long they take, and how often on a CPU."""


def milliseconds(call: Call, warmup: int = 5, rep: int = 40) -> float:
    """Time of one of as many calls as fit into some milliseconds, on a GPU with an empty cache.

    A GPU is still busy with something else when it gets one, so that the host's time is not part
    of it unless that is longer than anybody's should be.
    """
    if op_row.DEVICE == "cpu":
        return _by_clock(call, rep)
    whole = _pairs(call, 5, whole=True)
    count = max(1, int(rep / whole))
    _pairs(call, max(1, int(warmup / whole)))
    return _pairs(call, count)


def on_host(call: Call) -> float:
    """Milliseconds until the host has launched a call, on a GPU that has nothing else to do."""
    found: list[float] = []
    for _ in range(FEWEST):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1e3)
    torch.cuda.synchronize()
    return statistics.median(found)


def _by_clock(call: Call, rep: int) -> float:
    call()
    found: list[float] = []
    while len(found) < FEWEST or sum(found) < rep:
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1e3)
    return statistics.median(found)


def _pairs(call: Call, count: int, whole: bool = False) -> float:
    """Time of one of so many calls, or of all that is done for it."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(3)] for _ in range(count)]
    for before, start, end in events:
        before.record()
        _memory().zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    found = sorted((before if whole else start).elapsed_time(end) for before, start, end in events)
    out = count // SORTED_OUT
    return statistics.fmean(found[out : count - out])


@functools.cache
def _memory() -> Tensor:
    return torch.empty(CLEARED, dtype=torch.uint8, device="cuda")


def in_turn(calls: dict[str, Call], rounds: int = 0, **effort: int) -> dict[str, float]:
    """Milliseconds of each call; of short ones the best of several, what they share being noise."""
    return shortest(in_turns(calls, rounds, **effort))


def shortest(turns: dict[str, list[float]]) -> dict[str, float]:
    """The best turn of each call."""
    return {name: min(found) for name, found in turns.items()}


def in_turns(calls: dict[str, Call], rounds: int = 0, **effort: int) -> dict[str, list[float]]:
    """Milliseconds of each call in every turn; of short ones there are several.

    Python's collector, which would now and then interrupt one of them, rests.
    """
    gc.disable()
    try:
        found = {name: [milliseconds(call, **effort)] for name, call in calls.items()}
        for _ in range((rounds or _rounds(min(shortest(found).values()))) - 1):
            for name, call in calls.items():
                found[name].append(milliseconds(call, **effort))
        return found
    finally:
        gc.enable()


def turns_ahead(ours: list[float], peers: list[float]) -> int:
    """In how many turns a call took no longer than its peer's of the same turn."""
    return sum(a <= b for a, b in zip(ours, peers, strict=True))


def is_behind(ahead: int, turns: int) -> bool:
    """Whether so few turns ahead are less than the chance of calls that are equally fast.

    Of 15 turns that are 3 or fewer: such calls have them once in 57 times.
    """
    as_few = sum(math.comb(turns, k) for k in range(ahead + 1))
    return as_few < CHANCE * 2**turns


def _rounds(shortest: float) -> int:
    """How often calls are measured of which one takes so many milliseconds."""
    if op_row.DEVICE == "cpu":
        return ROUNDS_ON_CPU
    return max((count for limit, count in ROUNDS.items() if shortest < limit), default=1)
