"""Memory in which the launches of a sum of rows leave what the next one reads."""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch import Tensor
from triton.runtime import driver

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.counters import ZEROS

KEPT = 1 << 25
"""Bytes that a stream keeps for its launches; more are allocated by each of them."""


class Scratch(NamedTuple):
    """Words of 64 bits, numbers of 32 bits, float32 numbers, counters that are zero, and sizes."""

    words: Tensor
    numbers: Tensor
    edges: Tensor
    counters: Tensor
    sizes: tuple[int, int, int]

    @classmethod
    def of(cls, sizes: tuple[int, int, int], device: torch.device) -> Scratch:
        """New memory of so many words, numbers and float32 numbers."""
        kinds = torch.int64, torch.int32, torch.float32
        words, numbers, edges = (
            torch.empty(size, dtype=kind, device=device)
            for size, kind in zip(sizes, kinds, strict=True)
        )
        return cls(words, numbers, edges, ZEROS.of(device), sizes)


class Memory(threading.local):
    """What a thread launches on one stream follows each other and shares its memory.

    A recorded launch may be replayed beside any other, so it has memory of its own.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.device, int], Scratch] = {}

    def of(self, sizes: tuple[int, int, int], device: torch.device) -> Scratch:
        """Memory of at least these sizes for launches on the current stream."""
        if interpreted() or torch.cuda.is_current_stream_capturing():
            return Scratch.of(sizes, device)
        key = device, driver.active.get_current_stream(device.index)
        found = self._kept.get(key)
        if found is not None and all(map(int.__le__, sizes, found.sizes)):
            return found
        words, numbers, edges = map(max, sizes, (0, 0, 0) if found is None else found.sizes)
        if 8 * words + 4 * (numbers + edges) > KEPT:
            return Scratch.of(sizes, device)
        found = self._kept[key] = Scratch.of((words, numbers, edges), device)
        return found


MEMORY = Memory()
