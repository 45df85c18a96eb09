"""An activation times another matrix, and both gradients: one pass over memory each.

Rows of what is read may have space between them, as the halves of one projection have.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.approx import widened
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv
from onnxtrain.kernels.fast.pointwise import BLOCK, FEW, FEW_BLOCK, WARPS, gelu_slope, gelu_value


@triton.jit
def _at(place, columns, stride, DENSE: tl.constexpr):
    """Where an element lies."""
    if DENSE:
        return place
    return place // columns * stride + place % columns


@Compiled
@triton.jit
def _gated(
    out,
    gate,
    up,
    count,
    columns,
    gate_stride,
    up_stride,
    alpha,
    KIND: tl.constexpr,
    DENSE: tl.constexpr,
    B: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = place < count
    x = widened(tl.load(gate + _at(place, columns, gate_stride, DENSE), there, 0.0))
    u = widened(tl.load(up + _at(place, columns, up_stride, DENSE), there, 0.0))
    exact: tl.constexpr = gate.dtype.element_ty == tl.float32
    y = gelu_value(x, alpha, KIND, exact) * u
    tl.store(out + place, y.to(out.dtype.element_ty), there)


@Compiled
@triton.jit
def _gated_grad(
    gate_grad,
    up_grad,
    dy,
    gate,
    up,
    count,
    columns,
    gate_stride,
    up_stride,
    alpha,
    KIND: tl.constexpr,
    DENSE: tl.constexpr,
    B: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = place < count
    d = widened(tl.load(dy + place, there, 0.0))
    x = widened(tl.load(gate + _at(place, columns, gate_stride, DENSE), there, 0.0))
    u = widened(tl.load(up + _at(place, columns, up_stride, DENSE), there, 0.0))
    exact: tl.constexpr = gate.dtype.element_ty == tl.float32
    to_gate = d * u * gelu_slope(x, KIND, exact, alpha)
    to_up = d * gelu_value(x, alpha, KIND, exact)
    tl.store(gate_grad + place, to_gate.to(gate_grad.dtype.element_ty), there)
    tl.store(up_grad + place, to_up.to(up_grad.dtype.element_ty), there)


def gated(gate: Tensor, up: Tensor, kind: str, alpha: float) -> Tensor:
    """act(gate)·up for matrices whose rows are dense."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    block, dense = _block(gate), gate.is_contiguous() and up.is_contiguous()
    strides = gate.shape[1], gate.stride(0), up.stride(0)
    _gated[(cdiv(gate.numel(), block),)](
        out, gate, up, gate.numel(), *strides, alpha, kind, dense, block, num_warps=WARPS
    )
    return out


def gated_grad(
    dy: Tensor, gate: Tensor, up: Tensor, kind: str, alpha: float
) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up; dy is contiguous."""
    to_gate, to_up = torch.empty_like(dy), torch.empty_like(dy)
    block, dense = _block(gate), gate.is_contiguous() and up.is_contiguous()
    strides = gate.shape[1], gate.stride(0), up.stride(0)
    _gated_grad[(cdiv(gate.numel(), block),)](
        *(to_gate, to_up, dy, gate, up, gate.numel(), *strides, alpha, kind, dense, block),
        num_warps=WARPS,
    )
    return to_gate, to_up


def _block(x: Tensor) -> int:
    return FEW_BLOCK if x.numel() <= FEW else BLOCK[x.dtype.itemsize]
