"""Codecs of activations in one pass: one bit an element, and bytes with a shared exponent.

A group of eight elements is one row of a tile, and one thread's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv

GROUPS, WARPS = 256, 4
"""Groups and warps of a program."""
GROUP = tl.constexpr(8)


@triton.jit
def _places(groups, B: tl.constexpr):
    """The groups of this program, the places of their elements, and which of these there are."""
    group = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    return group, at, (group < groups)[:, None]


@Compiled
@triton.jit
def _pack1(out, x, groups, B: tl.constexpr):
    group, at, there = _places(groups, B)
    bits = (tl.load(x + at, there, 0.0) > 0).to(tl.int32) << (7 - tl.arange(0, GROUP))[None, :]
    tl.store(out + group, tl.sum(bits, 1).to(tl.uint8), group < groups)


@Compiled
@triton.jit
def _unpack1(out, x, groups, B: tl.constexpr):
    group, at, there = _places(groups, B)
    octet = tl.load(x + group, group < groups, 0).to(tl.int32)
    bits = (octet[:, None] >> (7 - tl.arange(0, GROUP))[None, :]) & 1
    tl.store(out + at, bits.to(out.dtype.element_ty), there)


@Compiled
@triton.jit
def _pack_msfp15(out, x, groups, B: tl.constexpr):
    _, at, there = _places(groups, B)
    bits = tl.load(x + at, there, 0.0).to(tl.float32).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) & 255
    shared = tl.max(exponent, 1)[:, None]
    mantissa = tl.where(exponent == 0, 0, (bits & 0x7FFFFF) | 0x800000)
    seven = (mantissa >> tl.minimum(shared - exponent, 31)) >> 17
    magnitude = (seven + (seven != 127).to(tl.int32)) >> 1
    sign = tl.where(exponent == 0, 0, (bits >> 31) & 1)
    codes = ((shared >> tl.arange(0, GROUP)[None, :]) & 1) << 7 | sign << 6 | magnitude
    tl.store(out + at, tl.where(shared == 255, 0, codes).to(tl.uint8), there)


@Compiled
@triton.jit
def _unpack_msfp15(out, x, groups, B: tl.constexpr):
    _, at, there = _places(groups, B)
    codes = tl.load(x + at, there, 0).to(tl.int32)
    shared = tl.sum((codes >> 7) << tl.arange(0, GROUP)[None, :], 1)[:, None]
    # 2^(s-132) as two factors: by itself it may be too small for float32, and would be rounded
    half = shared >> 1
    first = (half + 61 << 23).to(tl.float32, bitcast=True)
    second = (shared - half + 61 << 23).to(tl.float32, bitcast=True)
    value = (codes & 63).to(tl.float32) * first * second
    value = tl.where((codes & 64) > 0, -value, value)
    tl.store(out + at, tl.where(value == 0, 0.0, value).to(out.dtype.element_ty), there)


def takes(x: Tensor) -> bool:
    """Whether all elements are in whole groups, one after the other."""
    return x.numel() % 8 == 0 and x.is_contiguous()


def pack1(x: Tensor) -> Tensor:
    """The bits x > 0, eight a byte, the first one highest."""
    out = torch.empty(x.numel() // 8, dtype=torch.uint8, device=x.device)
    return _launched(_pack1, out, x, out.numel())


def unpack1(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits as 0 and 1, flat."""
    out = torch.empty(x.numel() * 8, dtype=dtype, device=x.device)
    return _launched(_unpack1, out, x, x.numel())


def pack_msfp15(x: Tensor) -> Tensor:
    """Bytes with 6 bits of each element and a shared exponent."""
    out = torch.empty_like(x, dtype=torch.uint8)
    return _launched(_pack_msfp15, out, x, x.numel() // 8)


def unpack_msfp15(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What such bytes stand for."""
    out = torch.empty_like(x, dtype=dtype)
    return _launched(_unpack_msfp15, out, x, x.numel() // 8)


def _launched(kernel: Compiled, out: Tensor, x: Tensor, groups: int) -> Tensor:
    kernel[(cdiv(groups, GROUPS),)](out, x, groups, GROUPS, num_warps=WARPS)
    return out
