"""Functions that a GPU computes in one instruction or a few, and conversions of pairs."""

from __future__ import annotations

import triton
import triton.language as tl

from onnxtrain.kernels.fast import interpreted

NATIVE = tl.constexpr(not interpreted())
"""Whether there are instructions of a GPU to choose; an interpreter has none."""
LOG2_E = tl.constexpr(1.4426950408889634)
MINUS_HALF_LOG2_E = tl.constexpr(-0.7213475204444817)


@triton.jit
def reciprocal(x):
    """1 / x in float32, one unit in the last place off at most."""
    if NATIVE:
        result = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = 1.0 / x
    return result


@triton.jit
def product(x, y):
    """x·y in float32, rounded before it is added to anything.

    The compiler would add it to another lane's by an instruction that rounds only the sum. So would
    the other lane, to its own, and the last bits of what should be one sum would differ.
    """
    if NATIVE:
        result = tl.inline_asm_elementwise(
            "mul.rn.f32 $0, $1, $2;", "=f,f,f", [x, y], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = x * y
    return result


@triton.jit
def two_to(x):
    """2ˣ in float32; results too small for a normal number are 0."""
    if NATIVE:
        result = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = tl.exp2(x)
    return result


@triton.jit
def log_two(x):
    """The logarithm of x to base 2 in float32, off by 2⁻²² of it, or by 2⁻²² where x is near 1."""
    if NATIVE:
        result = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = tl.log2(x)
    return result


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return reciprocal(1.0 + two_to(-x * LOG2_E))


@triton.jit
def rounded(x, KIND: tl.constexpr):
    """x in a type, two values by one instruction if that has 16 bits.

    Without it the compiler rounds one by one whatever is not only stored.
    """
    if NATIVE and tl.bfloat16 == KIND:
        result = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, is_pure=True, pack=2
        )
    elif NATIVE and tl.float16 == KIND:
        result = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.float16, is_pure=True, pack=2
        )
    else:
        result = x.to(KIND)
    return result


@triton.jit
def widened(x):
    """x in float32, two values of bfloat16 by two instructions, where the compiler takes three."""
    if NATIVE and x.dtype == tl.bfloat16:
        result = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
            "=r,=r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    else:
        result = x.to(tl.float32)
    return result


@triton.jit
def unchanged(x, zero):
    """x itself, which the compiler cannot know, so that it widens x anew.

    16-bit values that it widened before and kept would fill twice the registers.
    """
    if NATIVE and x.dtype.primitive_bitwidth == 16:
        x = tl.inline_asm_elementwise(
            "add.u32 $0, $1, $2;", "=r,r,r,r", [x, zero], dtype=x.dtype, is_pure=False, pack=2
        )
    return x


@triton.jit
def inverse_root(x):
    """1 / √x in float32, about one unit in the last place off."""
    guess = tl.rsqrt(x)
    better = guess * (1.5 - 0.5 * x * guess * guess)
    # neither 0 nor infinity can be improved
    return tl.where((x > 0) & (x < float("inf")), better, guess)


@triton.jit
def normal_below(x, EXACT: tl.constexpr):
    """Φ(x) of the normal distribution, and e^(-x²/2).

    Φ(-|x|) = e^(-x²/2)·t·P(t) with t = 1 / (1 + p·|x|). P was fitted to have a relative error
    below 2e-8, or below 6e-6 for values that are rounded to 16 bits.
    """
    density = two_to(x * x * MINUS_HALF_LOG2_E)
    size = tl.abs(x)
    if EXACT:
        t = reciprocal(size * 0.21213203435596426 + 1.0)
        p = t * -0.064761819815200875 + 0.24278346505831578
        p = p * t - 0.25614306224276195
        p = p * t + 0.27386484223249325
        p = p * t - 0.047328884902787705
        p = p * t + 0.10746462320492503
        p = p * t + 0.07416914889335091
        p = p * t + 0.08535767937110373
        p = p * t + 0.08459399840693578
    else:
        t = reciprocal(size * 0.31112698372208091 + 1.0)
        p = t * -0.073052373756937475 + 0.1753244597268557
        p = p * t + 0.020368162545043547
        p = p * t + 0.13179137843741165
        p = p * t + 0.12128535089685645
        p = p * t + 0.12428043878504147
    tail = p * t * density
    return tl.where(x < 0, tail, 1.0 - tail), density
