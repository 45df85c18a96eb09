"""Gelu with a bias, and its gradients: one pass over memory each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = {2: 2048, 4: 1024}
"""Elements of a program, by the bytes of one."""
WARPS = 4
TWICE_ROOT_2_OVER_PI = tl.constexpr(1.5957691216057308)
ROOT_HALF = tl.constexpr(0.7071067811865476)
ROOT_HALF_OVER_PI = tl.constexpr(0.3989422804014327)
CUBIC = tl.constexpr(0.044715)
THREE_CUBIC = tl.constexpr(0.134145)
MINUS_HALF_LOG2_E = tl.constexpr(-0.7213475204444817)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(-x * LOG2_E))


@triton.jit
def _twice_inner(x):
    """2·√(2/π)·(x + 0.044715·x³): (1 + tanh u) / 2 is the sigmoid of 2 u."""
    return (x * x * x * CUBIC + x) * TWICE_ROOT_2_OVER_PI


@triton.jit
def gelu_value(x, alpha, KIND: tl.constexpr):
    """x·Φ(x), its form by tanh, or x·sigmoid(α·x)."""
    if KIND == "none":
        result = 0.5 * x * (1.0 + tl.erf(x * ROOT_HALF))
    elif KIND == "tanh":
        result = x * _sigmoid(_twice_inner(x))
    else:
        result = x * _sigmoid(alpha * x)
    return result


@triton.jit
def gelu_slope(x, KIND: tl.constexpr, alpha=1.0):
    """The derivative of gelu_value."""
    if KIND == "none":
        density = tl.exp2(x * x * MINUS_HALF_LOG2_E) * ROOT_HALF_OVER_PI
        result = 0.5 * (1.0 + tl.erf(x * ROOT_HALF)) + x * density
    elif KIND == "tanh":
        s = _sigmoid(_twice_inner(x))
        inner = (x * x * THREE_CUBIC + 1.0) * TWICE_ROOT_2_OVER_PI
        result = s + x * s * (1.0 - s) * inner
    else:
        s = _sigmoid(alpha * x)
        result = s + alpha * x * s * (1.0 - s)
    return result


@triton.jit
def _gelu(
    out,
    dy,
    x,
    bias,
    count,
    columns,
    alpha,
    KIND: tl.constexpr,
    GRADIENT: tl.constexpr,
    BIAS: tl.constexpr,
    B: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * B
    lane = tl.arange(0, B)
    mask = lane < count - start
    value = tl.load(x + start + lane, mask, 0.0).to(tl.float32)
    if BIAS:
        column = ((start % columns).to(tl.int32) + lane) % columns
        value += tl.load(bias + column, mask, 0.0).to(tl.float32)
    if GRADIENT:
        grad = tl.load(dy + start + lane, mask, 0.0).to(tl.float32)
        result = grad * gelu_slope(value, KIND, alpha)
    else:
        result = gelu_value(value, alpha, KIND)
    tl.store(out + start + lane, result.to(out.dtype.element_ty), mask)


def gelu(
    x: Tensor,
    bias: Tensor | None,
    approximate: str,
    alpha: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Gelu(x + bias): exact, by ``tanh``, or ``quick`` with a sigmoid of α·x."""
    return _launched(x, x, bias, approximate, alpha, False, out)


def gelu_grad(
    dy: Tensor,
    x: Tensor,
    bias: Tensor | None,
    approximate: str,
    alpha: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """dy * Gelu'(x + bias)."""
    return _launched(dy, x, bias, approximate, alpha, True, out)


def _launched(
    dy: Tensor,
    x: Tensor,
    bias: Tensor | None,
    kind: str,
    alpha: float,
    gradient: bool,
    out: Tensor | None,
) -> Tensor:
    out = torch.empty_like(x) if out is None else out
    block = BLOCK[x.dtype.itemsize]
    _gelu[(triton.cdiv(x.numel(), block),)](
        out,
        dy,
        x,
        x if bias is None else bias,
        x.numel(),
        x.shape[-1],
        alpha,
        kind,
        gradient,
        bias is not None,
        block,
        num_warps=WARPS,
    )
    return out
