"""Sums of rows that have the same index, where no row has many.

Each row of the result has a line of slots. An index leaves its position in the next slot of its
row, in any order; a program that adds a row up takes the positions in ascending order, as a sort
would have them. If a row has too few slots after all, a last launch sorts all indices.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.early import Early, announce, wait
from onnxtrain.kernels.fast.common.launch import cdiv, power
from onnxtrain.kernels.fast.common.scratch import Memory, Sizes
from onnxtrain.kernels.fast.gather import runs
from onnxtrain.kernels.fast.gather.crowded import FRONT, sum_crowded
from onnxtrain.kernels.fast.gather.order import wrapped
from onnxtrain.kernels.rehearsal import rehearsing

PLACED = 128
"""Indices that a program places."""
ROWS, COLUMNS, WARPS = {2: 4, 4: 2}, 1024, 4
"""Rows that a program adds up, by the bytes of an element; its columns and warps."""
NONE = tl.constexpr(0x7FFFFFFF)
"""Behind all positions."""
MOST, OFTEN, SLOTTED = 1 << 18, 4, 1 << 18
"""Most indices, most indices a row on average, and most rows for which slots are tried."""
MOST_KINDS, TURNS, RARE_TURNS = 256, 16, 64
"""So many kinds of indices are remembered; after so many calls one looks again at those in slots,
and at those of which a row had too many."""
MOST_GIVEN = 64
"""Recorded launches that have zeros of their own, for good."""
Kind = tuple[int, int, torch.device]


def _zeros(sizes: Sizes, device: torch.device) -> Tensor:
    return torch.zeros(sizes, dtype=torch.int32, device=device)


def _anything(sizes: Sizes, device: torch.device) -> Tensor:
    return torch.empty(sizes, dtype=torch.int32, device=device)


class Tallies:
    """How many indices each row has: zeros, which whoever has used them makes zero again.

    A recorded launch may be replayed beside any other, so it has zeros that no other one gets. They
    are made beforehand: those that are made in a recording are cleared in every replay.
    """

    def __init__(self) -> None:
        self._spare: dict[tuple[int, torch.device], Tensor] = {}
        self._given: list[Tensor] = []
        self.forget()

    def forget(self) -> None:
        """Let nobody have zeros again that may not have been cleared."""
        self._shared = Memory(_zeros, 1 << 20)

    def of(self, size: int, device: torch.device) -> Tensor:
        """So many zeros for a launch on the current stream."""
        key = size, device
        if device.type != "cuda" or rehearsing():
            return _zeros((size,), device)
        if not torch.cuda.is_current_stream_capturing():
            if key not in self._spare and len(self._given) < MOST_GIVEN:
                self._spare[key] = _zeros((size,), device)
            return self._shared.of((size,), device)
        if key not in self._spare:
            return _zeros((size,), device)
        self._given.append(self._spare.pop(key))
        return self._given[-1]


TALLIES = Tallies()
SLOTS = Memory(_anything, 1 << 23)


@Compiled
@triton.jit(do_not_specialize=["count", "rows"])
def _place(
    tallies,
    slots,
    indices,
    count: tl.int32,
    rows: tl.int32,
    S: tl.constexpr,
    B: tl.constexpr,
):
    """Positions of indices in slots of their rows, as they come."""
    announce()
    at = tl.program_id(0) * B + tl.arange(0, B)
    there = at < count
    row = wrapped(tl.load(indices + at, there, 0), rows)
    slot = tl.atomic_add(tallies + FRONT + row, 1, there, sem="relaxed")
    tl.store(slots + row * S + slot, at, there & (slot < S))
    tl.store(tallies + tl.zeros_like(at), tl.full((B,), 1, tl.int32), there & (slot == S))


@triton.jit
def _load(values, position, columns, column, wanted):
    """A row of values, or zeros."""
    start = values + position.to(tl.int64) * columns
    return tl.load(start + column, column < tl.where(wanted, columns, 0), 0.0)


@triton.jit
def _store(out, row, total, columns, column, wanted):
    place = out + row.to(tl.int64) * columns + column
    tl.store(place, total.to(out.dtype.element_ty), column < tl.where(wanted, columns, 0))


@triton.jit
def _sum(one, other):
    return one.to(tl.float32) + other.to(tl.float32)


@triton.jit
def _in_turn(values, slots, row, tally, columns, column, S: tl.constexpr, C: tl.constexpr):
    """The sum of values that have a row, by ascending positions, two at a time."""
    slot = tl.arange(0, S)
    found = tl.load(slots + row * S + slot, slot < tally, NONE)
    first = tl.min(found, 0)
    total = tl.zeros((C,), tl.float32)
    for _ in range(0, tally, 2):
        second = tl.min(tl.where(found > first, found, NONE), 0)
        one = _load(values, first, columns, column, True)
        other = _load(values, second, columns, column, second < NONE)
        first = tl.min(tl.where(found > second, found, NONE), 0)
        total += one.to(tl.float32)
        total += other.to(tl.float32)
    return total


@Early
@triton.jit(do_not_specialize=["rows"])
def _few(
    out,
    tallies,
    slots,
    values,
    rows: tl.int32,
    columns,
    S: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Sums of rows whose slots suffice; two values have the same sum in either order."""
    wait()
    strips = tl.cdiv(columns, C)
    row = tl.program_id(0) // strips * R
    column = tl.program_id(0) % strips * C + tl.arange(0, C)
    announce()
    tally, one, other, sums = (), (), (), ()
    for r in tl.static_range(R):
        there = row + r < rows
        tally += (tl.load(tallies + FRONT + row + r, there, S + 1),)  # type: ignore[assignment]
        one += (tl.load(slots + (row + r) * S, there, 0),)  # type: ignore[assignment]
        other += (tl.load(slots + (row + r) * S + 1, there, 0),)  # type: ignore[assignment]
    for r in tl.static_range(R):
        first = _load(values, one[r], columns, column, (tally[r] == 1) | (tally[r] == 2))
        second = _load(values, other[r], columns, column, tally[r] == 2)
        sums += ((first, second),)  # type: ignore[assignment]
    for r in tl.static_range(R):
        _store(out, row + r, _sum(*sums[r]), columns, column, tally[r] <= 2)
    for r in tl.static_range(R):
        if (tally[r] > 2) & (tally[r] <= S):
            total = _in_turn(values, slots, row + r, tally[r], columns, column, S, C)
            _store(out, row + r, total, columns, column, True)


def sum_rows(indices: Tensor, values: Tensor, out: Tensor) -> None:
    """Write the sums of values by their rows, of which few have more indices than slots."""
    tallies = TALLIES.of(FRONT.value + len(out), values.device)
    try:
        _sum_few(indices, values, out, tallies)
        sum_crowded(indices, values, out, tallies)
    except BaseException:
        TALLIES.forget()
        raise


def _sum_few(indices: Tensor, values: Tensor, out: Tensor, tallies: Tensor) -> None:
    """The sums of rows whose slots suffice, and zeros in those without an index."""
    (rows, columns), total, device = out.shape, len(values), values.device
    # a row with as many indices as a chunk has no long run
    count = runs.CHUNK
    slots = SLOTS.of((rows * count,), device)
    placed = tallies, slots, indices, total, rows, count, PLACED
    _place[(cdiv(total, PLACED),)](*placed, num_warps=WARPS)
    width, together = min(power(columns), COLUMNS), ROWS[values.dtype.itemsize]
    _few[(cdiv(rows, together) * cdiv(columns, width),)](
        out,
        tallies,
        slots,
        values,
        rows,
        columns,
        count,
        together,
        width,
        num_warps=WARPS,
    )


@dataclasses.dataclass
class Known:
    """What is known of a kind of indices.

    Attributes:
        crowded: In memory of the host, -1 until the device says whether a row had too many.
        calls: How often one has asked.
        due: Whether it is time to look again.
        used: Whether slots have been used.
    """

    crowded: Tensor
    calls: int = 0
    due: bool = False
    used: bool = False


class Kinds:
    """Whether a row had more indices than slots when indices of a kind were last sorted.

    A kind is about how many there are and of how many rows. The device says it when it has come so
    far, and nobody waits for it: sums are the same in either way, and until there is a new answer
    the old one holds. Now and then indices are sorted to look at them again, for those of another
    layer may be of the same kind.
    """

    def __init__(self) -> None:
        self._known: dict[Kind, Known] = {}

    def forget(self) -> None:
        """Look at all kinds anew, as in a process that has seen none."""
        self._known.clear()

    def suffice(self, indices: Tensor, rows: int) -> bool:
        """Whether slots are thought to suffice; in a recording if they have been used before."""
        known = self._known.get(_kind(indices, rows))
        if known is None or rehearsing():
            return False
        suffices = int(known.crowded) == 0
        if torch.cuda.is_current_stream_capturing():
            return suffices and known.used
        known.calls += 1
        known.due = known.calls % (TURNS if suffices else RARE_TURNS) == 0
        if known.due or not suffices:
            return False
        known.used = True
        return True

    def look(self, indices: Tensor, words: Tensor, rows: int) -> None:
        """Let the device look at indices that lie in order, if it is time to."""
        total, key = indices.numel(), _kind(indices, rows)
        known = self._known.get(key)
        if total > min(MOST, OFTEN * rows) or rows > SLOTTED or (known and not known.due):
            return
        if not words.is_cuda or rehearsing() or torch.cuda.is_current_stream_capturing():
            return
        if known is None:
            if len(self._known) >= MOST_KINDS:
                self.forget()
            known = self._known[key] = Known(torch.full((), -1, dtype=torch.int8, pin_memory=True))
        known.due = False
        sorted_ones, distance = words[:total] >> 32, runs.CHUNK
        crowded = (sorted_ones[distance:] == sorted_ones[:-distance]).any()
        known.crowded.copy_(crowded.to(torch.int8), non_blocking=True)


def _kind(indices: Tensor, rows: int) -> Kind:
    return indices.numel().bit_length(), rows, indices.device


KINDS = Kinds()
suffice, look = KINDS.suffice, KINDS.look
