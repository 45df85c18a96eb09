"""Codecs that keep activations small between the forward and the backward pass.

Each encoder stands beside its decoder. Binarize keeps the sign test, Pack1 the same in one bit,
Pack8 a byte with five exponent bits, Pack16 a half, and PackMsfp15 a byte whose exponent is
shared by a tile of eight. What comes back is x rounded once to the codec's own numbers.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from onnxtrain.kernels import fast, gist_tiles
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import BOOL, FLOATS, MS, DataType

WIDE = frozenset({DataType.FLOAT, DataType.DOUBLE})
LARGEST_BYTE = 57344.0
"""Largest finite number of a Pack8 byte: 1.75·2^15."""
LARGEST = torch.finfo(torch.float32).max
TILE = gist_tiles.TILE
"""Elements that share an exponent, and bits that a byte holds."""

Shape = tuple[int | None, ...] | None


@kernel("GistBinarizeEncoder", domain=MS, T=FLOATS, T1=BOOL)
def binarize(x: Tensor) -> Tensor:
    """y = x > 0."""
    if fast.ready(x, smallest=1):
        found: Tensor = fast.load("gist").positive(x)
        return found
    return x > 0


@kernel("GistBinarizeDecoder", domain=MS, T=FLOATS, T1=BOOL)
def unbinarize(x: Tensor, *, to: int) -> Tensor:
    """y = 1 where x, else 0."""
    return _converted(x, to_torch(to))


def _converted(x: Tensor, kind: torch.dtype) -> Tensor:
    """x in another type, rounded to nearest even."""
    if x.element_size() <= 4 and _read_fast(x, kind):
        found: Tensor = fast.load("gist").converted(x, kind)
        return found
    return x.to(kind)


@kernel("GistPack1Encoder", domain=MS, T=FLOATS | BOOL, T1={DataType.UINT8})
def pack1(x: Tensor) -> Tensor:
    """The bits x > 0 in row-major order, eight a byte, the first one highest, the rest 0."""
    if fast.ready(x, smallest=1) and (quick := fast.load("gist")).takes(x):
        found: Tensor = quick.pack1(x)
        return found
    bits = (x if x.dtype is torch.bool else x > 0).reshape(-1).view(torch.uint8)
    bits = F.pad(bits, (0, -bits.numel() % TILE)).reshape(-1, TILE)
    return (bits << _places(x)).sum(-1, dtype=torch.uint8)


@kernel("GistPack1Decoder", domain=MS, needs=["out_shape"], T=FLOATS | BOOL, T1={DataType.UINT8})
def unpack1(x: Tensor, *, to: int, out_shape: Shape) -> Tensor:
    """The bits as 0 and 1, in the shape that the graph declares; flat if it declares none."""
    kind = to_torch(to)
    bits: Tensor
    if _read_fast(x, kind):
        bits = fast.load("gist").unpack1(x, kind)
    else:
        bits = ((x.reshape(-1, 1) >> _places(x)) & 1).reshape(-1).to(kind)
    if out_shape is None:
        return bits
    shape = torch.Size(_completed(out_shape, bits.numel()))
    return bits[: shape.numel()].reshape(shape)


def _read_fast(x: Tensor, kind: torch.dtype) -> bool:
    """Whether Triton may decode these to a type; autograd cannot go back through it."""
    whole = x.is_cuda and x.is_contiguous() and x.numel() > 0
    differentiated = x.requires_grad and torch.is_grad_enabled()
    return whole and kind in fast.TYPES and not differentiated and fast.serves(x.get_device())


def _places(like: Tensor) -> Tensor:
    """7, 6, ... 0: by how much each bit of a byte is shifted."""
    return torch.arange(TILE - 1, -1, -1, dtype=torch.uint8, device=like.device)


def _completed(shape: tuple[int | None, ...], bits: int) -> list[int]:
    """The shape with its unknown size filled in, for a tensor that was padded to ``bits``."""
    known = torch.Size([n for n in shape if n is not None]).numel()
    possible = range(max(bits - TILE + 1, 0), bits + 1)
    fits = [n for n in possible if known and n % known == 0]
    if None not in shape and known in possible:
        return [n for n in shape if n is not None]
    if shape.count(None) == 1 and len(fits) == 1:
        return [fits[0] // known if n is None else n for n in shape]
    shown = ["?" if n is None else n for n in shape]
    raise ValueError(
        f"{bits // TILE} bytes of bits do not say which tensor of shape {shown} they are; "
        "declare the decoder's output with the shape of the encoder's input"
    )


@kernel("GistPack8Encoder", domain=MS, T=FLOATS, T1={DataType.UINT8})
def pack8(x: Tensor) -> Tensor:
    """Sign, 5 bits of exponent (bias 15), 2 of mantissa: x to nearest even, at most ±57344.

    Infinities and NaN stay what they are; below 2^-14 steps are 2^-16.
    """
    if fast.ready(x, smallest=1):
        found: Tensor = fast.load("gist").to_byte(x)
        return found
    if x.is_cpu:
        wide = x.to(torch.float32) if x.dtype is torch.float64 else x
        codes = wide.to(torch.float8_e5m2).view(torch.uint8)
        if not _beyond(codes):
            return codes
    return _saturated(x, LARGEST_BYTE).to(torch.float8_e5m2).view(torch.uint8)


def _beyond(codes: Tensor) -> bool:
    """Whether a number became infinite or NaN: a byte of 7C or more, its sign left out."""
    if not codes.numel():
        return False
    return int(codes.max()) >= 0xFC or int(codes.view(torch.int8).max()) >= 0x7C


def _saturated(x: Tensor, largest: float) -> Tensor:
    """x in float32, finite numbers at most ``largest``."""
    wide = x.to(torch.float32)
    if x.dtype is not torch.float64 and largest == LARGEST:
        return wide
    return torch.where(torch.isinf(x), wide, wide.clamp(-largest, largest))


@kernel("GistPack8Decoder", domain=MS, T=FLOATS, T1={DataType.UINT8})
def unpack8(x: Tensor, *, to: int) -> Tensor:
    """The number of each byte."""
    if _read_fast(x, to_torch(to)):
        found: Tensor = fast.load("gist").of_byte(x, to_torch(to))
        return found
    return x.contiguous().view(torch.float8_e5m2).to(to_torch(to))


@kernel("GistPack16Encoder", domain=MS, T=WIDE, T1={DataType.FLOAT16})
def pack16(x: Tensor) -> Tensor:
    """x to the nearest half, ties to even; from 65520 on it is infinite."""
    return _converted(x, torch.float16)


@kernel("GistPack16Decoder", domain=MS, T=WIDE, T1={DataType.FLOAT16})
def unpack16(x: Tensor, *, to: int) -> Tensor:
    """The number of each half."""
    return _converted(x, to_torch(to))


@kernel("GistPackMsfp15Encoder", domain=MS, T=FLOATS, T1={DataType.UINT8})
def pack_msfp15(x: Tensor) -> Tensor:
    """±m·2^(s-132) with a 6-bit m for each element and an 8-bit s for each tile of eight.

    s is the largest exponent of the tile; m is |x|/2^(s-132) rounded half up, at most 63. Bit 7
    of byte i is bit i of s, bit 6 the sign. A tile with an infinity or NaN becomes 0. Elements
    beyond the last whole tile belong to it; fewer than eight in all are bytes of Pack8.
    """
    if x.numel() < TILE:
        return pack8(x)
    if fast.ready(x, smallest=1) and (quick := fast.load("gist")).takes(x):
        found: Tensor = quick.pack_msfp15(x)
        return found
    flat = x.detach().reshape(-1)
    if not x.is_cpu:
        return _pack_tiles(flat).reshape(x.shape)

    def tiles(block: Tensor) -> Tensor | None:
        return gist_tiles.packed(_saturated(block, LARGEST))

    return gist_tiles.in_blocks(flat, torch.uint8, tiles, _pack_tiles).view(x.shape)


def _pack_tiles(x: Tensor) -> Tensor:
    """The bytes of a vector of at least one tile."""
    bits = _saturated(x, LARGEST).contiguous().view(torch.int32)
    exponent = (bits >> 23) & 255
    tile, place = _tiles(x)
    shared = _largest_by_tile(exponent)[tile]
    mantissa = torch.where(exponent == 0, 0, (bits & 0x7FFFFF) | 0x800000)
    seven = (mantissa >> (shared - exponent).clamp(max=31)) >> 17
    magnitude = (seven + (seven != 127).to(torch.int32)) >> 1
    sign = torch.where(exponent == 0, 0, (bits >> 31) & 1)
    codes = ((shared >> place) & 1) << 7 | sign << 6 | magnitude
    return torch.where(shared == 255, 0, codes).to(torch.uint8)


@kernel("GistPackMsfp15Decoder", domain=MS, T=FLOATS, T1={DataType.UINT8})
def unpack_msfp15(x: Tensor, *, to: int) -> Tensor:
    """±m·2^(s-132), with s put together from bit 7 of a tile's bytes; +0 where m is 0."""
    if x.numel() < TILE:
        return unpack8(x, to=to)
    if x.numel() % TILE == 0 and _read_fast(x, to_torch(to)):
        found: Tensor = fast.load("gist").unpack_msfp15(x, to_torch(to))
        return found
    kind = to_torch(to)
    tiles, others = (functools.partial(f, dtype=kind) for f in (gist_tiles.unpacked, _unpack_tiles))
    if not x.is_cpu:
        return others(x.reshape(-1)).reshape(x.shape)
    return gist_tiles.in_blocks(x.reshape(-1), kind, tiles, others).view(x.shape)


def _unpack_tiles(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers of a vector of at least one tile."""
    codes = x.to(torch.int64)
    tile, place = _tiles(x)
    whole = codes.numel() // TILE * TILE
    shared = ((codes >> 7) << place)[:whole].reshape(-1, TILE).sum(-1)[tile]
    # a power of two by its bits: float64 holds every one that is needed, without rounding
    step = ((shared - 132 + 1023) << 52).view(torch.float64)
    magnitude = (codes & 63).to(torch.float64) * step
    negative = ((codes & 64) > 0) & (magnitude > 0)
    return torch.where(negative, -magnitude, magnitude).to(dtype)


def _tiles(x: Tensor) -> tuple[Tensor, Tensor]:
    """The tile of each element, and its place there: 0 to 7, or more beyond the last whole tile."""
    index = torch.arange(x.numel(), dtype=torch.int32, device=x.device)
    tile = (index // TILE).clamp(max=x.numel() // TILE - 1)
    return tile, index - tile * TILE


def _largest_by_tile(exponent: Tensor) -> Tensor:
    whole = exponent.numel() // TILE * TILE
    largest = exponent[:whole].reshape(-1, TILE).amax(-1)
    if whole < exponent.numel():
        largest[-1] = torch.maximum(largest[-1], exponent[whole:].amax())
    return largest
