"""Codecs of activations in one pass: element by element, one bit each, or with shared exponents.

Where eight elements belong together, they are one row of a tile, and one thread's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import NATIVE, widened
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.launch import cdiv, whole_blocks

GROUPS, FEW_GROUPS, FEW_OCTETS, WARPS = {2: 256, 4: 128}, 128, 64, 4
"""Groups of a program, by the bytes of a number, of one of a small tensor, of one that takes groups
of bits apart, and warps of each."""
FEW = 1 << 16
"""Groups up to which a tensor is small."""
GROUP = tl.constexpr(8)
READ_ONCE = "evict_first"
"""How bytes are read of which many become float32 numbers: what is written takes all the cache."""
BLOCK = {1: 2048, 2: 1024, 4: 512}
"""Elements of a program that takes them one by one, by the bytes of one that it writes."""
FEW_ELEMENTS, SMALL_BLOCK, SMALL_GROUP, SMALL_WARPS = 1 << 18, 2048, 2, 16
"""Elements up to which a tensor is small; of such a one those of a program, how many of them a
thread has side by side, and warps."""


@triton.jit
def _as_byte(x):
    """Sign, 5 bits of exponent and 2 of mantissa: to nearest even, finite numbers stay finite."""
    x = x.to(tl.float32)
    if NATIVE:
        code = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    else:
        code = _rounded(x)
    sign = tl.where(x < 0, 128, 0)
    return tl.where(tl.abs(x) == float("inf"), (sign | 124).to(tl.uint8), code)


@triton.jit
def _rounded(x):
    """What a GPU does in one instruction: its bits, with those of small numbers by a sum."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    large = tl.minimum((size + 0xFFFFF + ((size >> 21) & 1) >> 21) - 448, 123)
    # a sum with 128 has steps of 2^-16, as numbers below 2^-14 have
    small = (tl.abs(x) + 128.0).to(tl.int32, bitcast=True) & 7
    code = tl.where(size < 0x38800000, small, tl.where(size > 0x7F800000, 127, large))
    return (code | (bits >> 24) & 128).to(tl.uint8)


@triton.jit
def _of_byte(code):
    """Such a byte is the upper half of a number in float16."""
    return (code.to(tl.uint16) << 8).to(tl.float16, bitcast=True)


@Early
@triton.jit
def _each(
    out,
    x,
    count,
    HOW: tl.constexpr,
    KEPT: tl.constexpr,
    WHOLE: tl.constexpr,
    G: tl.constexpr,
    B: tl.constexpr,
):
    wait()
    first = tl.program_id(0) * B if WHOLE else tl.program_id(0).to(tl.int64) * B
    at = (tl.arange(0, B // G) * G)[:, None] + tl.arange(0, G)[None, :]
    there = None if WHOLE else at < count - first
    other = None if WHOLE else 0
    value = tl.load(x + first + at, there, other, eviction_policy=KEPT)
    if HOW == "positive":
        value = value > 0
    elif HOW == "to byte":
        value = _as_byte(value)
    elif HOW == "of byte":
        value = _of_byte(value)
    elif HOW == "truth":
        value = tl.where(value != 0, 1.0, 0.0)
    tl.store(out + first + at, value.to(out.dtype.element_ty), there)


@triton.jit
def _places(groups, WHOLE: tl.constexpr, B: tl.constexpr):
    """The groups of this program, the places of their elements, and which of both there are."""
    first = tl.program_id(0) if WHOLE else tl.program_id(0).to(tl.int64)
    group = first * B + tl.arange(0, B)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    there = tl.full((B,), 1, tl.int1) if WHOLE else group < groups
    return group, at, there, there[:, None]


@Early
@triton.jit
def _pack1(out, x, groups, WHOLE: tl.constexpr, B: tl.constexpr):
    wait()
    group, at, each, there = _places(groups, WHOLE, B)
    bits = (tl.load(x + at, there, 0.0) > 0).to(tl.int32) << (7 - tl.arange(0, GROUP))[None, :]
    tl.store(out + group, tl.sum(bits, 1).to(tl.uint8), each)


@Early
@triton.jit
def _unpack1(out, x, groups, WHOLE: tl.constexpr, B: tl.constexpr):
    wait()
    group, at, each, there = _places(groups, WHOLE, B)
    octet = tl.load(x + group, each, 0).to(tl.int32)
    bits = octet[:, None] & (128 >> tl.arange(0, GROUP))[None, :]
    tl.store(out + at, tl.where(bits != 0, 1.0, 0.0).to(out.dtype.element_ty), there)


@Early
@triton.jit
def _pack_msfp15(out, x, groups, WHOLE: tl.constexpr, B: tl.constexpr):
    wait()
    _, at, _, there = _places(groups, WHOLE, B)
    value = widened(tl.load(x + at, there, 0.0))
    bits = value.to(tl.int32, bitcast=True)
    shared = tl.max(bits & 0x7FFFFFFF, 1)[:, None] >> 23
    codes = _codes_at_once(value, shared) if NATIVE else _codes(bits, shared)
    tl.store(out + at, codes.to(tl.uint8), there)


@triton.jit
def _codes(bits, shared):
    """The bit of the shared exponent, the sign, and six bits of the magnitude, rounded half up."""
    exponent = (bits >> 23) & 255
    mantissa = tl.where(exponent == 0, 0, (bits & 0x7FFFFF) | 0x800000)
    seven = (mantissa >> tl.minimum(shared - exponent, 31)) >> 17
    magnitude = (seven + (seven != 127).to(tl.int32)) >> 1
    sign = tl.where(exponent == 0, 0, (bits >> 31) & 1)
    codes = ((shared >> tl.arange(0, GROUP)[None, :]) & 1) << 7 | sign << 6 | magnitude
    return tl.where(shared == 255, 0, codes)


@triton.jit
def _codes_at_once(value, shared):
    """The same, four bytes at once.

    |x|·2^(132-s) + 2^22 + 1/2, cut off behind halves, has the magnitude in its bits 1 to 6. The
    power of two is two factors, the first one no less than 1: what is not 0 keeps its sign.
    """
    power = 132 - shared
    half = tl.maximum(power, 0) >> 1
    first = (half + 127 << 23).to(tl.float32, bitcast=True)
    second = (power - half + 127 << 23).to(tl.float32, bitcast=True)
    four = tl.where(tl.arange(0, GROUP)[None, :] < 4, shared, shared >> 4) & 15
    left = tl.where(shared == 255, 0, -1)
    first, value = tl.broadcast(first, value)
    second, value = tl.broadcast(second, value)
    left, value = tl.broadcast(left, value)
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, c, d, s, t;
        fma.rn.ftz.f32 a, $1, $5, 0f00000000;
        fma.rn.ftz.f32 b, $2, $6, 0f00000000;
        fma.rn.ftz.f32 c, $3, $7, 0f00000000;
        fma.rn.ftz.f32 d, $4, $8, 0f00000000;
        prmt.b32 s, a, b, 0x0073;
        prmt.b32 t, c, d, 0x0073;
        prmt.b32 s, s, t, 0x5410;
        abs.f32 a, a;
        abs.f32 b, b;
        abs.f32 c, c;
        abs.f32 d, d;
        fma.rz.f32 a, a, $9, 0f4A800001;
        fma.rz.f32 b, b, $10, 0f4A800001;
        fma.rz.f32 c, c, $11, 0f4A800001;
        fma.rz.f32 d, d, $12, 0f4A800001;
        min.s32 a, a, 0x4A80007F;
        min.s32 b, b, 0x4A80007F;
        min.s32 c, c, 0x4A80007F;
        min.s32 d, d, 0x4A80007F;
        prmt.b32 a, a, b, 0x0040;
        prmt.b32 c, c, d, 0x0040;
        prmt.b32 a, a, c, 0x5410;
        shr.u32 a, a, 1;
        and.b32 a, a, 0x3F3F3F3F;
        shr.u32 s, s, 1;
        and.b32 s, s, 0x40404040;
        mul.lo.u32 t, $13, 0x10204080;
        and.b32 t, t, 0x80808080;
        or.b32 a, a, s;
        or.b32 a, a, t;
        and.b32 $0, a, $17;
        }
        """,
        "=r" + ",f" * 12 + ",r" * 8,
        [value, first, second, four, left],
        dtype=tl.uint8,
        is_pure=True,
        pack=4,
    )


@Early
@triton.jit
def _unpack_msfp15(out, x, groups, KEPT: tl.constexpr, WHOLE: tl.constexpr, B: tl.constexpr):
    wait()
    _, at, _, there = _places(groups, WHOLE, B)
    codes = tl.load(x + at, there, 0, eviction_policy=KEPT).to(tl.int32)
    shared = tl.sum((codes & 128) << tl.arange(0, GROUP)[None, :], 1)[:, None] >> 7
    # 2^(s-132) as two factors: by itself it may be too small for float32, and would be rounded
    half = shared >> 1
    first = (half + 61 << 23).to(tl.float32, bitcast=True)
    second = (shared - half + 61 << 23).to(tl.float32, bitcast=True)
    # the magnitude in the lowest bits of 2^23 is a whole number without conversion
    value = ((codes & 63) | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
    bits = (value * first).to(tl.int32, bitcast=True) ^ ((codes & 64) << 25)
    # a sum with +0 is never -0
    value = bits.to(tl.float32, bitcast=True) * second + 0.0
    tl.store(out + at, value.to(out.dtype.element_ty), there)


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
    return _launched(_unpack1, out, x, x.numel(), FEW_OCTETS)


def pack_msfp15(x: Tensor) -> Tensor:
    """Bytes with 6 bits of each element and a shared exponent."""
    out = torch.empty_like(x, dtype=torch.uint8)
    return _launched(_pack_msfp15, out, x, x.numel() // 8)


def unpack_msfp15(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What such bytes stand for."""
    out = torch.empty_like(x, dtype=dtype)
    return _launched(_unpack_msfp15, out, x, x.numel() // 8, FEW_GROUPS, _kept(out, x))


def positive(x: Tensor) -> Tensor:
    """x > 0."""
    out = torch.empty_like(x, dtype=torch.bool)
    _one_by_one(out.view(torch.uint8), x, "positive")
    return out


def to_byte(x: Tensor) -> Tensor:
    """Bytes with five bits of exponent and two of mantissa."""
    return _one_by_one(torch.empty_like(x, dtype=torch.uint8), x, "to byte")


def of_byte(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What such bytes stand for."""
    return _one_by_one(torch.empty_like(x, dtype=dtype), x, "of byte")


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x rounded to another type, truth values being 0 and 1."""
    out = torch.empty_like(x, dtype=dtype)
    if x.dtype is torch.bool:
        return _one_by_one(out, x.view(torch.uint8), "truth")
    return _one_by_one(out, x, "rounded")


def _one_by_one(out: Tensor, x: Tensor, how: str) -> Tensor:
    count, of = x.numel(), out.dtype.itemsize
    if count <= FEW_ELEMENTS:
        group, block, warps = SMALL_GROUP, SMALL_BLOCK, SMALL_WARPS
    else:
        group = GROUP.value if of == 1 else 16 // max(x.dtype.itemsize, of)
        block, warps = BLOCK[of], WARPS
    cut = (whole_blocks(count, block), group, block)
    _each[(cdiv(count, block),)](out, x, count, how, _kept(out, x), *cut, num_warps=warps)
    return out


def _kept(out: Tensor, x: Tensor) -> str:
    """How x stays in the cache when it is decoded."""
    grows = out.dtype.itemsize == 4 * x.dtype.itemsize
    return READ_ONCE if grows and x.numel() > FEW_ELEMENTS else ""


def _launched(
    kernel: Compiled, out: Tensor, x: Tensor, groups: int, few: int = FEW_GROUPS, *more: str
) -> Tensor:
    number = max(out.dtype.itemsize, x.dtype.itemsize)
    block = few if groups <= FEW else GROUPS[number]
    cut = whole_blocks(groups * 8, block * 8), block
    kernel[(cdiv(groups, block),)](out, x, groups, *more, *cut, num_warps=WARPS)
    return out
