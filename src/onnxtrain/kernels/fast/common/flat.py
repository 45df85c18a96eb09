"""New tensors of many shapes out of one piece of memory: torch takes less time than for each."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

STEP = 16
"""Tensors begin at multiples of so many elements, which are whole addresses whatever their type."""


class Run(NamedTuple):
    """Tensors that differ in their first axis only, one behind the other.

    Attributes:
        length: Elements of all of them.
        row: Their shape without the first axis.
        pieces: Lengths of the first axis; behind a tensor there may be a piece that nobody uses.
    """

    length: int
    row: tuple[int, ...]
    pieces: list[int]


class Flat(NamedTuple):
    """Where tensors of certain shapes lie in one piece of memory.

    Attributes:
        length: Elements of all of it.
        starts: Where each tensor begins.
        runs: How it is cut.
        order: Which of the pieces each tensor is.
        single: Tensors without axes.
    """

    length: int
    starts: tuple[int, ...]
    runs: list[Run]
    order: list[int]
    single: list[int]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Flat:
        """For tensors of the same shapes as these, which have elements."""
        return _planned(tuple([t.shape for t in tensors]))

    def cut(self, whole: Tensor) -> list[Tensor]:
        """The tensors out of a piece of the right length; to autograd they are no views of it."""
        pieces: list[Tensor] = []
        parts = torch.unsafe_split_with_sizes(whole, [run.length for run in self.runs])
        for part, (_, row, sizes) in zip(parts, self.runs, strict=True):
            rows = part.view(-1, *row) if row else part
            pieces += torch.unsafe_split_with_sizes(rows, sizes)
        found = [pieces[place] for place in self.order]
        for place in self.single:
            found[place] = found[place][0]
        return found


@functools.lru_cache(64)
def _planned(shapes: tuple[torch.Size, ...]) -> Flat:
    alike: dict[tuple[int, ...], list[int]] = {}
    for place, shape in enumerate(shapes):
        alike.setdefault(tuple(shape[1:]), []).append(place)
    starts, order = [0] * len(shapes), [0] * len(shapes)
    runs: list[Run] = []
    end = count = 0
    for row, places in alike.items():
        first, width, sizes = end, math.prod(row), list[int]()
        for place in places:
            starts[place], order[place] = end, count + len(sizes)
            rows = shapes[place][0] if shapes[place] else 1
            unused = -rows % (STEP // math.gcd(width, STEP))
            sizes += [rows, unused] if unused else [rows]
            end += (rows + unused) * width
        runs.append(Run(end - first, row, sizes))
        count += len(sizes)
    single = [place for place, shape in enumerate(shapes) if not shape]
    return Flat(end, tuple(starts), runs, order, single)
