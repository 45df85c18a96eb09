"""What every kernel of a softmax does with the elements of a row, however these lie."""

from __future__ import annotations

import triton
import triton.language as tl

from onnxtrain.kernels.fast.common.approx import (
    LOG2_E,
    log_two,
    reciprocal,
    two_to,
    unchanged,
    widened,
)
from onnxtrain.kernels.fast.common.exchange import joined

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def finite(top):
    """A largest value that can be subtracted from what is not larger."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def raised(x, top):
    """e^(x - top)."""
    return two_to((x - top) * LOG2_E)


@triton.jit
def result_of(x, top, total, LOG: tl.constexpr):
    """The softmax of x, or its logarithm, of a row with this largest value and sum."""
    return x - top - tl.log(total) if LOG else raised(x, top) * reciprocal(total)


@triton.jit
def result_of_held(held, top, total, LOG: tl.constexpr):
    """The same; for 16 bits by fewer instructions that are exact enough."""
    if held.dtype == tl.float32:
        y = result_of(held, top, total, LOG)
    else:
        x, length = widened(held), log_two(total)
        y = x - top - length * LN_2 if LOG else two_to((x - top) * LOG2_E - length)
    return y


@triton.jit
def not_kept(held, zero):
    """What is held, of which comparisons have left no copy in registers."""
    if held.dtype != tl.bfloat16:  # pairs of these are compared as they are
        held = unchanged(held, zero)
    return held


@triton.jit
def all_joined(tops, sums):
    """The largest value of all parts, and the sum of all, along the first axis."""
    top, total = joined(tops, sums)
    return finite(top), total


@triton.jit
def grad_term(dy, y, LOG: tl.constexpr):
    """What a gradient sums along the axis."""
    return dy if LOG else dy * y


@triton.jit
def grad_of(dy, y, total, LOG: tl.constexpr):
    """The gradient in x."""
    return dy - two_to(y * LOG2_E) * total if LOG else y * (dy - total)
