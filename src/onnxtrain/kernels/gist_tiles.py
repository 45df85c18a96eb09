"""Tiles of eight numbers that share an exponent, on a CPU: blocks that stay in its cache.

What belongs to all of a tile comes from tables of its 256 exponents.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from onnxtrain.kernels import blocks
from onnxtrain.kernels.rehearsal import remembered

TILE = 8
LARGEST_DENORMAL = 2.0**-126 - 2.0**-149
LOWEST = 5
"""The smallest exponent by whose power of two a float32 can be divided."""
ALMOST_HALF = 0.5 - 2.0**-25
"""What makes cutting off the same as rounding half up: with 0.5 a sum may be rounded up itself."""


def in_blocks(
    x: Tensor,
    dtype: torch.dtype,
    tiles: Callable[[Tensor], Tensor | None],
    others: Callable[[Tensor], Tensor],
) -> Tensor:
    """What ``tiles`` makes of the blocks of a vector, or ``others`` where it makes nothing.

    A last tile of more than eight elements is not for ``tiles``.
    """
    count = len(x)
    end = count if count % TILE == 0 else (count // TILE - 1) * TILE
    made = torch.empty(count, dtype=dtype)
    cut = [block for block in (*x[:end].split(blocks.size()), x[end:]) if len(block)]
    for block, target in zip(cut, made.split([*map(len, cut)]), strict=True):
        found = tiles(block) if len(block) % TILE == 0 else None
        target.copy_(others(block) if found is None else found)
    return made


def packed(x: Tensor) -> Tensor | None:
    """Bytes of whole tiles of float32 numbers; None if one has an infinity, NaN or a tiny exponent.

    See ``gist.pack_msfp15``.
    """
    # zeros and denormal numbers have no sign and no mantissa
    x = F.hardshrink(x, LARGEST_DENORMAL)
    size = x.abs()
    largest = F.max_pool1d(size.view(1, 1, -1), TILE, TILE).view(-1)
    shared = largest.view(torch.int32) >> 23
    low, high = shared.masked_fill(shared == 0, LOWEST).aminmax()
    if int(low) < LOWEST or int(high) == 255:
        return None
    size.mul_(_inverse_steps().index_select(0, shared).view(-1)).add_(ALMOST_HALF)
    codes = size.to(torch.int32).to(torch.uint8).clamp_(max=63)
    codes |= ((x.view(torch.int32) >> 25) & 64).to(torch.uint8)
    codes |= _bits().index_select(0, shared).view(torch.uint8)
    return codes


def unpacked(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers of whole tiles; see ``gist.unpack_msfp15``."""
    bits = (codes >> 7).to(torch.float32).view(-1, TILE)
    shared = torch.mv(bits, _powers()).to(torch.int32)
    magnitude, negative = (codes & 63).view(torch.int8), (codes << 1).view(torch.int8) >> 7
    work = torch.promote_types(dtype, torch.float32)
    # -m has the bits of ~m + 1, which is 0 for 0
    signed = (magnitude ^ negative).sub_(negative).to(work)
    return signed.mul_(_steps(work).index_select(0, shared).view(-1)).to(dtype)


@remembered(1)
def _powers() -> Tensor:
    """1, 2, ... 128: what the bits of an exponent stand for."""
    return (1 << torch.arange(TILE)).to(torch.float32)


@remembered(1)
def _bits() -> Tensor:
    """Eight bytes for each exponent: bit 7 of byte i is its bit i. Together they are an int64."""
    bits = (torch.arange(256)[:, None] >> torch.arange(TILE)) & 1
    return (bits << 7).to(torch.uint8).view(torch.int64).view(-1)


@remembered(4)
def _steps(dtype: torch.dtype) -> Tensor:
    """2^(s-132) for each exponent s, eight times."""
    steps = ((torch.arange(256) - 132 + 1023) << 52).view(torch.float64)
    return steps.to(dtype)[:, None].repeat(1, TILE)


@remembered(1)
def _inverse_steps() -> Tensor:
    """1 / ``_steps`` from ``LOWEST`` on, 0 before."""
    inverse = 1 / _steps(torch.float64)
    inverse[:LOWEST] = 0
    return inverse.to(torch.float32)
