"""Zeros on a GPU by which the programs of a launch count themselves, and which they leave zero."""

from __future__ import annotations

import itertools

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.rehearsal import rehearsing

SPARE = 1 << 14
"""Recorded launches on a device that get counters of their own."""


class Zeros:
    """Counters of launches: launches on one stream follow each other and share theirs.

    A recorded launch may be replayed beside any other, so it has counters that no other one gets.
    """

    def __init__(self) -> None:
        self._shared: dict[tuple[torch.device, int], Tensor] = {}
        self._spare: dict[torch.device, tuple[Tensor, itertools.count[int]]] = {}

    def of(self, device: torch.device) -> Tensor:
        """Two counters for a launch on the current stream."""
        if interpreted() or rehearsing():
            return torch.zeros(2, dtype=torch.int32, device=device)
        if torch.cuda.is_current_stream_capturing():
            return self._own(device)
        key = device, driver.active.get_current_stream(device.index)
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = _zeros(1, device)[0]
            self._spare.setdefault(device, (_zeros(SPARE, device), itertools.count()))
        return found

    def _own(self, device: torch.device) -> Tensor:
        if device in self._spare:
            zeros, numbers = self._spare[device]
            number = next(numbers)
            if number < len(zeros):
                return zeros[number]
        return _zeros(1, device)[0]


def _zeros(count: int, device: torch.device) -> Tensor:
    """Counters of so many launches, each at a whole address of 16 bytes."""
    return torch.zeros((count, 4), dtype=torch.int32, device=device)


ZEROS = Zeros()


@triton.jit
def come(counters):
    """Say that a program has stored what others wait for; how many have said so."""
    tl.debug_barrier()
    return tl.atomic_add(counters, 1, sem="acq_rel") + 1


@triton.jit
def meet(counters, expected, COMES: tl.constexpr = True):
    """Wait until so many programs have come, and see what they have stored.

    This one is one of them unless it only waits.
    """
    arrived = 0
    if COMES:
        arrived = come(counters)
    while arrived < expected:
        arrived = tl.atomic_add(counters, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def leave(counters):
    """Who leaves last makes the counters zero again for the next launch; whether that is this."""
    tl.debug_barrier()
    last = tl.atomic_add(counters + 1, 1, sem="acq_rel") == tl.num_programs(0) - 1
    if last:
        tl.store(counters, 0)
        tl.store(counters + 1, 0)
    return last
