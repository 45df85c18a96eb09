"""Memory in which a launch leaves what the next one reads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from triton.runtime import driver

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.common.counters import ZEROS
from onnxtrain.kernels.rehearsal import rehearsing

Sizes = tuple[int, ...]
Held = TypeVar("Held")


class Memory(threading.local, Generic[Held]):
    """What a thread launches on one stream follows each other and shares its memory.

    A recorded launch may be replayed beside any other, so it has memory of its own.
    """

    def __init__(self, make: Callable[[Sizes, torch.device], Held], most: int) -> None:
        """Memory that is made for certain sizes; at most so many elements are kept for a stream."""
        self._make, self._most = make, most
        self._kept: dict[tuple[torch.device, int], tuple[Sizes, Held]] = {}

    def of(self, sizes: Sizes, device: torch.device) -> Held:
        """Memory of at least these sizes for launches on the current stream."""
        if interpreted() or rehearsing() or torch.cuda.is_current_stream_capturing():
            return self._make(sizes, device)
        key = device, driver.active.get_current_stream(device.index)
        found = self._kept.get(key)
        if found is not None:
            if all(map(int.__le__, sizes, found[0])):
                return found[1]
            larger = tuple(map(max, sizes, found[0]))
        else:
            larger = sizes
        if sum(larger) > self._most:
            return self._make(sizes, device)
        held = self._make(larger, device)
        self._kept[key] = larger, held
        return held


class Scratch(NamedTuple):
    """Words of 64 bits, numbers of 32 bits, float32 numbers, and counters that are zero."""

    words: Tensor
    numbers: Tensor
    edges: Tensor
    counters: Tensor


def _scratch(sizes: Sizes, device: torch.device) -> Scratch:
    """New memory of so many words, numbers and float32 numbers."""
    kinds = torch.int64, torch.int32, torch.float32
    words, numbers, edges = (
        torch.empty(size, dtype=kind, device=device)
        for size, kind in zip(sizes, kinds, strict=True)
    )
    return Scratch(words, numbers, edges, ZEROS.of(device))


MEMORY = Memory(_scratch, 1 << 22)
"""For sums of rows whose indices are sorted."""
