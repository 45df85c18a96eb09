"""Rows of a matrix in chunks, so that few lanes of a warp lie behind the end of a row.

A chunk is what the warps of a row read at once, 16 bytes by each thread. One warp has a whole row
if it can, and then it adds it up without waiting for others.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from onnxtrain.kernels.fast.common.launch import cdiv, multiprocessors, power

LANES = 32
VECTOR = 16
"""Bytes that a thread reads at once."""
MOST_WARPS = 16
MANY_ROUNDS = 8
REGISTERS = 65536
"""Registers that the programs on a multiprocessor share."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """Most elements of a row in a thread, warps, warps on a multiprocessor, stages."""

    per_thread: int
    warps: int
    resident: int
    stages: int


@dataclasses.dataclass(frozen=True)
class Tile:
    """Rows that a program takes at once, and how programs share a multiprocessor.

    Attributes:
        rows: How many rows.
        width: Columns of a chunk.
        chunks: Chunks of a row.
        whole: Whether the last chunk ends with the row.
        warps: Warps of a program.
        stages: How many rounds of rows are under way.
        resident: Programs on a multiprocessor.
        registers: Most registers of a thread, so that they find room.
    """

    rows: int
    width: int
    chunks: int
    whole: bool
    warps: int
    stages: int
    resident: int
    registers: int

    @classmethod
    def of(cls, columns: int, itemsize: int, plan: Launch, matrices: int, shared: int) -> Tile:
        """A tile for rows of so many elements, of several matrices that are read together.

        Programs on a multiprocessor share so many bytes.
        """
        across = min(MOST_WARPS, power(cdiv(columns, LANES * plan.per_thread)))
        warps = max(plan.warps, across)
        width = across * LANES * VECTOR // itemsize
        chunks = cdiv(columns, width)
        rows = warps // across
        waiting = matrices * rows * width * chunks * itemsize + 1024
        stages = min(plan.stages, 1 + shared // waiting)
        room = shared // (waiting * max(1, stages - 1))
        resident = max(1, min(plan.resident // warps, room))
        registers = min(255, REGISTERS // (LANES * resident * warps) // 8 * 8)
        whole = width * chunks == columns
        return cls(rows, width, chunks, whole, warps, stages, resident, registers)

    @property
    def cut(self) -> tuple[int, bool, int, int, int]:
        """Stages, and how a kernel cuts rows: the last arguments of each."""
        return self.stages, self.whole, self.rows, self.width, self.chunks

    def programs(self, rows: int, device: torch.device) -> int:
        """Programs that go through all rows."""
        return evenly(cdiv(rows, self.rows), multiprocessors(device) * self.resident)


def evenly(pieces: int, most: int) -> int:
    """How many programs share so many pieces: of many, all but the last have the same number."""
    rounds = cdiv(pieces, most)
    return min(pieces, most) if rounds < MANY_ROUNDS else cdiv(pieces, rounds)


@triton.jit
def nothing():
    """A row before its first chunk."""
    return ()


@triton.jit
def row_numbers(first, rows, columns, R: tl.constexpr):
    """Numbers of the next rows, which of them there are, and where they begin."""
    row = first + tl.arange(0, R)
    return row, row < rows, row.to(tl.int64)[:, None] * columns


@triton.jit
def chunk(there, columns, k: tl.constexpr, WHOLE: tl.constexpr, W: tl.constexpr):
    """Columns of a chunk, and which of its elements there are."""
    column = k * W + tl.arange(0, W)[None, :]
    if WHOLE:
        mask = there[:, None]
    else:
        mask = there[:, None] & (column < columns)
    return column, mask


@triton.jit
def vector(first, columns, W: tl.constexpr, K: tl.constexpr):
    """A vector that applies to all rows, in float32."""
    chunks = nothing()
    for k in tl.static_range(K):
        column = k * W + tl.arange(0, W)
        chunks += (tl.load(first + column, column < columns, 0.0).to(tl.float32)[None, :],)
    return chunks


@triton.jit
def zeros(R: tl.constexpr, W: tl.constexpr, K: tl.constexpr):
    """Rows of zeros."""
    chunks = nothing()
    for _ in tl.static_range(K):
        chunks += (tl.zeros((R, W), tl.float32),)
    return chunks


@triton.jit
def _half(x, R: tl.constexpr, W: tl.constexpr):
    """Half as many rows: the first half plus the second."""
    first, second = tl.split(tl.permute(tl.reshape(x, (2, R // 2, W)), (1, 2, 0)))
    return first + second


@triton.jit
def store_share(
    shares,
    kind: tl.constexpr,
    chunks,
    columns,
    R: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
):
    """Leave the sums over the rows of tiles, 1, 2 or 4 of them, one of several kinds.

    In tl.sum over rows that warps have, all threads would read the same few banks.
    """
    place = shares + (kind * tl.num_programs(0) + tl.program_id(0)) * columns
    for k in tl.static_range(K):
        column = k * W + tl.arange(0, W)
        total = chunks[k]
        if R == 4:
            total = _half(total, 4, W)
        if R > 1:
            total = _half(total, 2, W)
        tl.store(place + column, tl.reshape(total, (W,)), column < columns)
