"""Statistics of values that come one after the other, and an activation behind a normalization."""

from __future__ import annotations

import triton
import triton.language as tl

from onnxtrain.kernels.fast.common.approx import product
from onnxtrain.kernels.fast.pointwise import gelu_slope, gelu_value


@triton.jit
def gone_on(middle, squares, value, share, there):
    """Mean and squared deviations of one value more, which is such a share of all of them.

    Deviations from the mean so far keep their digits whatever the first of the values is.
    """
    apart = tl.where(there, value - middle, 0.0)
    middle += apart * share
    return middle, squares + apart * (value - middle)


@triton.jit
def activated(value, alpha, KIND: tl.constexpr):
    """A value behind the activation."""
    if KIND == "relu":
        result = tl.where(value < 0.0, 0.0, value)
    elif KIND == "swish":
        result = gelu_value(value, alpha, "quick", True)
    else:
        result = value
    return result


@triton.jit
def before_activation(grad, line, alpha, KIND: tl.constexpr, SUMMED: tl.constexpr):
    """The gradient before the activation, whose input is the line; a term of a sum or not."""
    if KIND == "relu":
        result = tl.where(line > 0.0, grad, 0.0)
    elif KIND == "swish":
        slope = gelu_slope(line, "quick", True, alpha)
        result = product(grad, slope) if SUMMED else grad * slope
    else:
        result = grad
    return result
