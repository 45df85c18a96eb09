"""Sums of floating point numbers as sums of whole ones, which are the same in any order.

A sum has three words: the exponent of its largest number, a high and a low one in units of it. Of n
numbers, each has 2 * BITS - 1 = 61 - 2 log2(n) bits below the largest, and the sum is rounded once;
below 2^-118, the last bits of float32 are lost. A sum with infinite numbers counts these instead.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROUND = tl.constexpr(3.0 * (1 << 22))
"""What is added to this is rounded to a whole number, found in its last bits."""
ROUND_BITS = tl.constexpr(0x4B400000)
INFINITE = tl.constexpr(255 << 23)
"""The exponent of infinity and of what is no number."""


def bits_of(numbers: int) -> int:
    """Bits of a word such that a power of two of numbers can be added."""
    return min(22, 32 - numbers.bit_length())


@triton.jit
def exponent(value):
    """Exponents in their place among the bits: larger ones are larger numbers."""
    return value.to(tl.int32, bitcast=True) & INFINITE


@triton.jit
def _unit(top, BITS: tl.constexpr):
    """The power of two of which numbers up to ``top`` have less than 2^(BITS - 1)."""
    return top - ((BITS - 2) << 23)


@triton.jit
def split(value, top, BITS: tl.constexpr):
    """A number as high + low / 2^BITS units; infinite ones are counted, up and down."""
    scaled = value * ((254 << 23) - _unit(top, BITS)).to(tl.float32, bitcast=True)
    near = scaled + ROUND
    rest = (scaled - (near - ROUND)) * (1 << BITS) + ROUND
    high = near.to(tl.int32, bitcast=True) - ROUND_BITS
    low = rest.to(tl.int32, bitcast=True) - ROUND_BITS
    up, down = ~(value < float("inf")), ~(value > float("-inf"))
    finite = top != INFINITE
    return tl.where(finite, high, up), tl.where(finite, low, down)


@triton.jit
def joined(high, low, top, BITS: tl.constexpr):
    """The sum of the numbers of which the words are sums."""
    units = high.to(tl.float32) + low.to(tl.float32) * (1 / (1 << BITS))
    total = units * _unit(top, BITS).to(tl.float32, bitcast=True)
    one_sided = tl.where(high == 0, float("-inf"), float("inf"))
    infinite = tl.where((high == 0) | (low == 0), one_sided, float("nan"))
    return tl.where(top != INFINITE, total, infinite)
