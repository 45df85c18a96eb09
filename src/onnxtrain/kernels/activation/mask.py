"""Which elements dropout keeps: random masks, and their packed form.

A node with a seed draws from Philox 4x32-10 with the seed as its key and the element's position as
its counter, so its mask depends on nothing else: not on the session, the device, or what ran
before. A node without a seed draws from the session's generator.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import blocks
from onnxtrain.kernels.scalars import single

_MASK32 = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_GATHER = 0x0102040810204080
"""Times eight bytes that are 0 or 1: their bits in order, in the highest byte."""
_REPEAT, _OWN_BIT = 0x0101010101010101, 0x8040201008040201 - (1 << 64)
"""Times a byte: eight of it. And with that: byte i has bit i alone."""
_FEW = 1 << 12
"""Elements from which on blocks are faster than torch's choice between two values."""


def rate_of(ratio: float | list[float] | None) -> float:
    """The share of elements to drop; a half where the input is left out."""
    rate: float = 0.5 if ratio is None else single(ratio)
    if not 0 <= rate < 1:
        raise ValueError(f"ratio is {rate}, which is outside range [0, 1)")
    return rate


def keep_mask(x: Tensor, ratio: float, seed: int | None, rng: torch.Generator | None) -> Tensor:
    """Truth values in the shape of a tensor, true with probability 1 - ratio."""
    if ratio == 0:
        return torch.ones(x.shape, dtype=torch.bool, device=x.device)
    if seed is not None:
        count = x.numel()
        each = blocks.size() if x.device.type == "cpu" else max(1, count)
        starts = range(0, max(1, count), each)
        parts = [_uniform(min(each, count - s), seed, x.device, s) < 1 - ratio for s in starts]
        return torch.cat(parts).view(x.shape)
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    return mask.bernoulli_(1 - ratio, generator=rng)


def drop(x: Tensor, mask: Tensor, ratio: float, out: Tensor | None = None) -> Tensor:
    """Y = x / (1 - ratio) where the mask is true, else 0."""
    given = (x, mask) if out is None else (x, mask, out)
    alike = mask.dtype is torch.bool and mask.shape == x.shape
    if alike and blocks.ready(*given, smallest=_FEW):
        room = torch.empty_like(x) if out is None else out
        bits = _INTEGERS[x.element_size()]
        for target, part, kept in blocks.flat(room, x, mask):
            # a product of whole numbers takes a tenth of torch.where, and knows no NaN
            torch.mul(part.view(bits), kept, out=target.view(bits))
            if ratio != 0:
                target.mul_(1 / (1 - ratio))
        return room
    kept = torch.where(mask, x, x.new_zeros(()), out=out)
    return kept if ratio == 0 else kept.mul_(1 / (1 - ratio))


def pack(mask: Tensor) -> Tensor:
    """Truth values as bits of uint32 words, element i at bit i mod 32 of word i // 32."""
    flat = mask.reshape(-1)
    if not flat.numel():
        return flat.new_empty(0, dtype=torch.uint32)  # its strides may be any
    eights = torch.nn.functional.pad(flat, (0, -flat.numel() % 32)).view(torch.int64)
    octets = eights.mul_(_GATHER).bitwise_right_shift_(56).to(torch.uint8)
    return octets.view(torch.uint32)


def unpack(words: Tensor, like: Tensor) -> Tensor:
    """The truth values behind packed words, in the shape of a tensor."""
    if words.numel() != packed_size(like):
        raise ValueError(
            f"mask has {words.numel()} words, {packed_size(like)} hold {like.numel()} elements"
        )
    # A single word may keep any stride and still count as contiguous; only a copy has stride 1.
    octets = words.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
    bits = octets.to(torch.int64).mul_(_REPEAT).bitwise_and_(_OWN_BIT).view(torch.uint8)
    return bits[: like.numel()].view(like.shape).to(torch.bool)


def all_kept(x: Tensor) -> Tensor:
    """The packed mask that keeps everything."""
    octets = torch.full((packed_size(x) * 4,), 0xFF, dtype=torch.uint8, device=x.device)
    return octets.view(torch.uint32)


def packed_size(x: Tensor) -> int:
    """How many words the mask of a tensor takes."""
    return -(-x.numel() // 32)


def _uniform(count: int, seed: int, device: torch.device, start: int = 0) -> Tensor:
    """Numbers in (0, 1], number i from word i mod 4 of Philox at the counter i // 4.

    They are those from a ``start`` on, which is a multiple of four.
    """
    index = torch.arange(start // 4, start // 4 - (-count // 4), device=device)
    zero = torch.zeros_like(index)
    words = _philox([zero, zero, index & _MASK32, index >> 32], seed)
    return (torch.stack(words, -1).view(-1)[:count].to(torch.float32) * 2.0**-32).add_(2.0**-33)


def _philox(counter: list[Tensor], seed: int) -> list[Tensor]:
    """Ten rounds of Philox 4x32: 32-bit words in int64 tensors, whose products wrap at 64 bits."""
    c0, c1, c2, c3 = counter
    keys = [seed & _MASK32, (seed >> 32) & _MASK32]
    for _ in range(10):
        even, odd = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((odd >> 32) & _MASK32) ^ c1 ^ keys[0],
            odd & _MASK32,
            ((even >> 32) & _MASK32) ^ c3 ^ keys[1],
            even & _MASK32,
        )
        keys = [(key + weyl) & _MASK32 for key, weyl in zip(keys, _WEYL, strict=True)]
    return [c0, c1, c2, c3]
