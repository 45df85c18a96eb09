"""Images on a CPU, some samples after the other: what is made for them stays in its cache."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from onnxtrain.kernels import blocks
from onnxtrain.kernels.layout import layout_of
from onnxtrain.kernels.precision import acc


def parts(dy: Tensor, grad: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some samples of dy, the place of their gradient, and others, in the type of computation.

    What was written to the place comes into ``grad``, rounded once.
    """
    layout, work = layout_of(dy), acc(dy.dtype)
    # torch gives each thread whole samples
    size = torch.get_num_threads() * max(1, blocks.SIZE // max(1, math.prod(grad.shape[1:])))
    together = [(dy, grad, *others)]
    # of their own, since a pool may keep the shape of its images
    rooms, results = Rooms(layout), Rooms(layout)
    if len(dy) > size:
        together = list(zip(*(t.split(size) for t in together[0]), strict=True))
    for given, target, *more in together:
        if work is dy.dtype:
            yield given.contiguous(memory_format=layout), target, *more
            continue
        made = results.like(target, work)
        yield rooms.like(given, work).copy_(given), made, *more
        target.copy_(made)


class Rooms:
    """Memory of a layout that is used again for the next part, as new one costs more to get."""

    def __init__(self, layout: torch.memory_format) -> None:
        self._layout = layout
        self._known: dict[tuple[torch.dtype, torch.Size], Tensor] = {}

    def like(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """A tensor of such a shape, with anything in it."""
        count, key = len(x), (dtype, x.shape[1:])
        room = self._known.get(key)
        if room is None:
            room = torch.empty(x.shape, dtype=dtype, memory_format=self._layout)
            self._known[key] = room
        return room if len(room) == count else room[:count]
