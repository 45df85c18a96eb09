"""Gelu with a bias, and its gradients: one pass over memory each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import normal_below, reciprocal, sigmoid, two_to, widened
from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.launch import cdiv

BLOCK, BIASED_BLOCK = {2: 1024, 4: 512}, {2: 2048, 4: 512}
"""Elements of a program, by the bytes of one: 16 bytes a thread. For a value with a bias, whose
place it has to find, a thread has two groups of 16-bit ones."""
WARPS = 4
FEW, FEW_BLOCK, FEW_WARPS = 1 << 20, 1024, 8
"""Elements up to which threads have fewer; those of a program then, and its warps."""
MINUS_TWICE_ROOT_2_OVER_PI_LOG2_E = tl.constexpr(-2.302208198144325)
ROOT_HALF_OVER_PI = tl.constexpr(0.3989422804014327)
CUBIC = tl.constexpr(0.044715)
THREE_CUBIC_LN_2 = tl.constexpr(0.09298222853621385)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _gate(x):
    """(1 + tanh u) / 2, the sigmoid of 2 u, with u = √(2/π)·(x + 0.044715·x³)."""
    power = (x * x * CUBIC + 1.0) * (x * MINUS_TWICE_ROOT_2_OVER_PI_LOG2_E)
    return reciprocal(1.0 + two_to(power))


@triton.jit
def gelu_value(x, alpha, KIND: tl.constexpr, EXACT: tl.constexpr):
    """x·Φ(x), its form by tanh, or x·sigmoid(α·x)."""
    if KIND == "none":
        below, _ = normal_below(x, EXACT)
        result = x * below
    elif KIND == "tanh":
        result = x * _gate(x)
    else:
        result = x * sigmoid(alpha * x)
    return result


@triton.jit
def gelu_slope(x, KIND: tl.constexpr, EXACT: tl.constexpr, alpha=1.0):
    """The derivative of gelu_value."""
    if KIND == "none":
        below, density = normal_below(x, EXACT)
        result = x * ROOT_HALF_OVER_PI * density + below
    elif KIND == "tanh":
        s = _gate(x)
        # times -2 x u': a factor that the power of 2 has taken as well, then one that may be huge
        within = (s * s - s) * (x * MINUS_TWICE_ROOT_2_OVER_PI_LOG2_E)
        result = within * (x * x * THREE_CUBIC_LN_2 + LN_2) + s
    else:
        s = sigmoid(alpha * x)
        result = (s - s * s) * (alpha * x) + s
    return result


@Early
@triton.jit
def _gelu(
    out,
    x,
    dy,
    bias,
    count,
    columns: tl.constexpr,
    alpha: tl.constexpr,
    KIND: tl.constexpr,
    GRADIENT: tl.constexpr,
    BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    G: tl.constexpr,
    B: tl.constexpr,
):
    wait()
    start = (tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)) * B
    group = tl.arange(0, B // G) * G
    lane = group[:, None] + tl.arange(0, G)[None, :]
    mask = lane < count - start
    value = widened(tl.load(x + start + lane, mask, 0.0))
    if GRADIENT:
        grad = widened(tl.load(dy + start + lane, mask, 0.0))
    if BIAS:
        # a group does not cross the end of a row
        first = (start % columns).to(tl.int32) if WIDE else start
        begin = tl.multiple_of((first + group) % columns, G)
        column = begin[:, None] + tl.arange(0, G)[None, :]
        value += widened(tl.load(bias + column, mask, 0.0))
    exact: tl.constexpr = x.dtype.element_ty == tl.float32
    if GRADIENT:
        result = grad * gelu_slope(value, KIND, exact, alpha)
    else:
        result = gelu_value(value, alpha, KIND, exact)
    tl.store(out + start + lane, result.to(out.dtype.element_ty), mask)


def gelu(
    x: Tensor,
    bias: Tensor | None,
    approximate: str,
    alpha: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Gelu(x + bias): exact, by ``tanh``, or ``quick`` with a sigmoid of α·x."""
    return _launched(x, None, bias, approximate, alpha, out)


def gelu_grad(
    dy: Tensor,
    x: Tensor,
    bias: Tensor | None,
    approximate: str,
    alpha: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """dy * Gelu'(x + bias)."""
    return _launched(x, dy, bias, approximate, alpha, out)


def _launched(
    x: Tensor,
    dy: Tensor | None,
    bias: Tensor | None,
    kind: str,
    alpha: float,
    out: Tensor | None,
) -> Tensor:
    out = torch.empty_like(x) if out is None else out
    biased, gradient, size = bias is not None, dy is not None, x.dtype.itemsize
    few = x.numel() <= FEW
    blocks = BIASED_BLOCK if biased and not gradient else BLOCK
    block = FEW_BLOCK if few else blocks[size]
    _gelu[(cdiv(x.numel(), block),)](
        out,
        x,
        x if biased and not gradient else dy,
        bias,
        x.numel(),
        x.shape[-1] if biased else 1,
        float(alpha) if kind == "quick" else 1.0,
        kind,
        gradient,
        biased,
        x.numel() + block >= 1 << 31,
        16 // size if not biased or x.shape[-1] % (16 // size) == 0 else 1,
        block,
        num_warps=FEW_WARPS if few else WARPS,
    )
    return out
