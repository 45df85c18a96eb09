"""An activation times another matrix, and both gradients: one pass over memory each.

Rows may have space between them, as the halves of one matrix have. A program takes a tile of some
rows and columns, so that nothing is divided to find an element, and threads move 16 bytes at once
where the rows begin at multiples of that.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.approx import sigmoid, widened
from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.launch import cdiv, power
from onnxtrain.kernels.fast.common.rows import LANES, VECTOR
from onnxtrain.kernels.fast.pointwise import BLOCK, FEW, WARPS, gelu_slope, gelu_value

FEW_BLOCK = 512
"""Elements of a program of a small tensor."""


@triton.jit
def _value(x, alpha, KIND: tl.constexpr, EXACT: tl.constexpr):
    """act(x)."""
    if KIND == "sigmoid":
        result = sigmoid(x)
    elif KIND == "relu":
        result = tl.where(x < 0.0, 0.0, x)
    elif KIND == "swish":
        result = gelu_value(x, alpha, "quick", EXACT)
    elif KIND == "gelu_tanh":
        result = gelu_value(x, alpha, "tanh", EXACT)
    else:
        result = gelu_value(x, alpha, "none", EXACT)
    return result


@triton.jit
def _slope(d, x, alpha, KIND: tl.constexpr, EXACT: tl.constexpr):
    """d·act'(x); what a Relu does not take gets 0 whatever d is."""
    if KIND == "sigmoid":
        s = sigmoid(x)
        result = d * (s - s * s)
    elif KIND == "relu":
        result = tl.where(x > 0.0, d, 0.0)
    elif KIND == "swish":
        result = d * gelu_slope(x, "quick", EXACT, alpha)
    elif KIND == "gelu_tanh":
        result = d * gelu_slope(x, "tanh", EXACT)
    else:
        result = d * gelu_slope(x, "none", EXACT)
    return result


@triton.jit
def _tile(rows, columns, strips, DENSE: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Numbers of this program's rows, its first column, its columns from there, and which are."""
    number = tl.program_id(0)
    if DENSE:
        first = number * 0
        strip = number
    else:
        first = number // strips
        strip = number % strips
    row = first.to(tl.int64) * R + tl.arange(0, R)
    start = strip.to(tl.int64) * C
    lane = tl.arange(0, C)[None, :]
    there = (row < rows)[:, None] & (lane < columns - start)
    return row[:, None], start, lane, there


@Early
@triton.jit
def _gated(
    out, gate, up, rows, columns, strips, out_stride, gate_stride, up_stride, alpha,
    KIND: tl.constexpr,
    DENSE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    wait()
    row, start, lane, there = _tile(rows, columns, strips, DENSE, R, C)
    x = widened(tl.load(gate + start + (row * gate_stride + lane), there, 0.0))
    u = widened(tl.load(up + start + (row * up_stride + lane), there, 0.0))
    exact: tl.constexpr = gate.dtype.element_ty == tl.float32
    y = _value(x, alpha, KIND, exact) * u
    tl.store(out + start + (row * out_stride + lane), y.to(out.dtype.element_ty), there)


@Early
@triton.jit
def _gated_grad(
    gate_grad, up_grad, dy, gate, up, rows, columns, strips,
    gate_grad_stride, up_grad_stride, dy_stride, gate_stride, up_stride, alpha,
    KIND: tl.constexpr,
    DENSE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    wait()
    row, start, lane, there = _tile(rows, columns, strips, DENSE, R, C)
    d = widened(tl.load(dy + start + (row * dy_stride + lane), there, 0.0))
    x = widened(tl.load(gate + start + (row * gate_stride + lane), there, 0.0))
    u = widened(tl.load(up + start + (row * up_stride + lane), there, 0.0))
    exact: tl.constexpr = gate.dtype.element_ty == tl.float32
    to_gate = _slope(d * u, x, alpha, KIND, exact).to(gate_grad.dtype.element_ty)
    to_up = (d * _value(x, alpha, KIND, exact)).to(up_grad.dtype.element_ty)
    tl.store(gate_grad + start + (row * gate_grad_stride + lane), to_gate, there)
    tl.store(up_grad + start + (row * up_grad_stride + lane), to_up, there)


def gated(gate: Tensor, up: Tensor, kind: str, alpha: float) -> Tensor:
    """act(gate)·up for matrices whose rows are dense."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    _launch(_gated, [out, gate, up], kind, alpha)
    return out


def gated_grad(
    dy: Tensor,
    gate: Tensor,
    up: Tensor,
    kind: str,
    alpha: float,
    into: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up, matrices whose rows are dense, as dy is.

    Those they are written ``into`` may be gate and up.
    """
    if into is None:
        into = torch.empty_like(dy), torch.empty_like(dy)
    _launch(_gated_grad, [*into, dy, gate, up], kind, alpha)
    return into


def _launch(kernel: Early, tensors: list[Tensor], kind: str, alpha: float) -> None:
    """One pass over matrices of one shape; without space between rows they are one long row."""
    rows, columns = tensors[0].shape
    dense = all(t.is_contiguous() for t in tensors)
    if dense:
        rows, columns = 1, rows * columns
    together, width = _cut(rows, columns, tensors[0].dtype.itemsize)
    strips = cdiv(columns, width)
    strides = [t.stride(0) for t in tensors]
    kernel[(strips * cdiv(rows, together),)](
        *(*tensors, rows, columns, strips, *strides, alpha, kind, dense, together, width),
        num_warps=WARPS,
    )


def _cut(rows: int, columns: int, itemsize: int) -> tuple[int, int]:
    """Rows and columns of a tile: the widest of those that have the fewest columns too many."""
    block = FEW_BLOCK if rows * columns <= FEW else BLOCK[itemsize]
    if rows == 1:
        return 1, block
    widest = min(block, power(columns))
    narrowest = min(widest, LANES * VECTOR // itemsize)
    widths = [1 << n for n in range(narrowest.bit_length() - 1, widest.bit_length())]
    width = min(reversed(widths), key=lambda width: cdiv(columns, width) * width)
    return block // width, width
