"""How many programs a launch has, and how large their blocks are."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from onnxtrain.kernels.fast import interpreted

SHARED = 224 << 10
"""Bytes of memory that the programs on a multiprocessor share at most."""
PROGRAMS = 512
"""Fewer are not enough for a GPU if each has several rows."""


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a few stand for them where kernels are interpreted."""
    if device.type == "cpu":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes that programs on a multiprocessor of a GPU share: consumers' GPUs have less."""
    if device.type == "cpu":
        return SHARED
    properties = torch.cuda.get_device_properties(device)
    return min(SHARED, int(getattr(properties, "shared_memory_per_block_optin", SHARED)))


def cdiv(n: int, part: int) -> int:
    """How many parts n has, the last one perhaps smaller."""
    return -(-n // part)


def whole_blocks(count: int, block: int) -> bool:
    """Whether so many elements fill all blocks, and 32 bits are enough to count them."""
    return count % block == 0 and count < 1 << 31


def power(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def warps(elements: int, per_thread: int = 16, most: int = 16) -> int:
    """Warps for a block of so many elements."""
    return max(1, min(most, power(elements // (32 * per_thread))))


def spread(together: int, rows: int) -> int:
    """Rows of a program: so many, a power of two, or fewer where that makes enough programs.

    An interpreter, which runs one after the other, needs no more of them.
    """
    enough = 1 << max(0, (rows // PROGRAMS).bit_length() - 1)
    return together if interpreted() else min(together, enough)


def part_of(size: int, most: int) -> int:
    """Length of the parts into which an axis is cut.

    An interpreter runs one program after the other, and none could wait for the next.
    """
    return power(size) if interpreted() else min(power(size), most)


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def both_sums(a, b, AXIS: tl.constexpr, TOGETHER: tl.constexpr):
    """Sums of two tiles along an axis, by one exchange between warps if they go together.

    An interpreter, which would take the pairs one by one, adds one tile after the other.
    """
    if TOGETHER:
        first, second = tl.reduce((a, b), AXIS, _add_pairs)
    else:
        first, second = tl.sum(a, AXIS), tl.sum(b, AXIS)
    return first, second


@triton.jit
def row_sums(a, b, TOGETHER: tl.constexpr):
    """The same along the rows of two tiles."""
    return both_sums(a, b, 1, TOGETHER)


@triton.jit
def strip(columns, C: tl.constexpr):
    """Columns of this program's strip, and which of them there are."""
    column = tl.program_id(0) * C + tl.arange(0, C)
    return column, column < columns


@triton.jit
def places(first, rows, columns, column, fits, WHOLE: tl.constexpr, R: tl.constexpr):
    """Where R rows of a strip lie, and which of these elements there are.

    Only where they begin takes 64 bits. WHOLE: each column of the strip is there.
    """
    row = tl.arange(0, R)[:, None]
    mask = row < rows - first
    if not WHOLE:
        mask = mask & fits[None, :]
    return tl.cast(first, tl.int64) * columns + (row * columns + column[None, :]), mask


@triton.jit
def store_sums(parts, kind: tl.constexpr, total, columns, column, fits):
    """Sums of a strip over the rows that this program has seen, one of several kinds."""
    place = (kind * tl.num_programs(1) + tl.program_id(1)) * columns + column
    tl.store(parts + place, tl.sum(total, 0), fits)
