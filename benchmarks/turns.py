"""Contenders that take turns in short bursts: other work on the machine meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

ROUNDS = 9
Burst = Callable[[float], float]
"""Runs something for some seconds; gives the median time of one call in milliseconds."""


def burst(call: Callable[[], object], device: str) -> Burst:
    """Bursts of a call in this process."""

    def run(seconds: float) -> float:
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e3

    return run


def take_turns(
    bursts: dict[str, Burst], seconds: float, rounds: int | None = None
) -> dict[str, list[float]]:
    """Times of all contenders, turn by turn; the first turn only warms up."""
    times: dict[str, list[float]] = {name: [] for name in bursts}
    for turn in range((rounds or ROUNDS) + 1):
        for name, run in bursts.items():
            found = run(seconds)
            if turn:
                times[name].append(found)
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """What a call takes by contender."""
    return {name: statistics.median(found) for name, found in times.items()}


def ratio(times: dict[str, list[float]], one: str, peer: str) -> float | str:
    """How many times as long as a peer one takes; empty if the peer was not measured."""
    if peer not in times:
        return ""
    return statistics.median(a / b for a, b in zip(times[one], times[peer], strict=True))
