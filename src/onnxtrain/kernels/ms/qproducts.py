"""Products and sums of whole numbers that stand for real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import from_torch, to_torch
from onnxtrain.kernels.nn.rnn.lstm import run
from onnxtrain.kernels.quantization import BYTES, dynamic_quantize_linear, qlinear_conv, quantized
from onnxtrain.kernels.reduction.reduce import reduce, sum_
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS, DataType

Types = Sequence[tuple[int, Any]]
_FLOAT = frozenset({DataType.FLOAT})
_SHORT = frozenset({DataType.INT16, DataType.UINT16})


@kernel("QLinearConv", domain=MS, T1=BYTES, T2=BYTES, T3=BYTES)
def ms_qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    channels_last: int = 0,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """QLinearConv whose images may be [n, h, w, c]; filters are [m, c/group, h, w]."""
    y = qlinear_conv(
        x.movedim(-1, 1) if channels_last else x,
        x_scale,
        x_zero_point,
        w,
        w_scale,
        w_zero_point,
        y_scale,
        y_zero_point,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return y.movedim(1, -1).contiguous() if channels_last else y


def steps(q: Tensor, zero: Tensor | None) -> Tensor:
    """q - zero, exactly, with a zero point or one per column."""
    wide = q.to(torch.float64)
    return wide if zero is None else wide - zero.to(torch.float64)


@kernel("QGemm", domain=MS, needs=["out_types"], T=_FLOAT, TA=BYTES, TB=BYTES)
def qgemm(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    out_types: Types,
) -> Tensor:
    """y = α·a_scale·b_scale·((a' - zero)·(b' - zero) + c), quantized if there is a y_scale."""
    left = steps(a.t() if transA else a, a_zero_point)
    right = steps(b.t() if transB else b, b_zero_point)
    total = left @ right if c is None else left @ right + c
    y = total * (alpha * a_scale.to(torch.float64) * b_scale.to(torch.float64))
    if y_scale is None:
        return y.to(to_torch(out_types[0][0] or DataType.FLOAT))
    shift = None if y_zero_point is None else y_zero_point.to(torch.float64)
    dtype = DataType.UINT8 if y_zero_point is None else from_torch(y_zero_point.dtype)
    return quantized(y / y_scale.to(torch.float64), shift, dtype)


@kernel("DynamicQuantizeMatMul", domain=MS, T1=_FLOAT, T2=BYTES)
def dynamic_quantize_matmul(
    a: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """y = a·b + bias, with a quantized to bytes by its own range."""
    codes, scale, zero = dynamic_quantize_linear(a)
    return matmul_integer_to_float(codes, b, scale, b_scale, zero, b_zero_point, bias)


@kernel("MatMulIntegerToFloat", domain=MS, T1=BYTES, T2=BYTES, T3=FLOATS)
def matmul_integer_to_float(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """y = (a - zero)·a_scale·(b - zero)·b_scale + bias; scales are single or one per column."""
    left, factor = steps(a, a_zero_point), a_scale.to(torch.float64)
    if a_scale.numel() > 1:
        left, factor = left * factor, factor.new_ones(())
    product = torch.matmul(left, steps(b, b_zero_point)) * factor.reshape(())
    y = product * (b_scale.to(torch.float64) if b_scale.numel() > 1 else b_scale.reshape(()))
    return (y if bias is None else y + bias).to(a_scale.dtype)


@kernel("MatMulInteger16", domain=MS, needs=["out_types"], T1=_SHORT, T2=_SHORT)
def matmul_integer16(a: Tensor, b: Tensor, *, out_types: Types) -> Tensor:
    """y = a·b in 32 bits."""
    product = torch.matmul(a.to(torch.float64), b.to(torch.float64)).to(torch.int64)
    return product.to(to_torch(out_types[0][0] or DataType.INT32))


@kernel("MulInteger", domain=MS, T=BYTES)
def mul_integer(
    a: Tensor, a_zero_point: Tensor | None, b: Tensor, b_zero_point: Tensor | None = None
) -> Tensor:
    """c = (a - zero)·(b - zero) in 32 bits."""
    return (steps(a, a_zero_point) * steps(b, b_zero_point)).to(torch.int32)


@kernel("ReduceSumInteger", domain=MS, T1=BYTES)
def reduce_sum_integer(data: Tensor, *, axes: Sequence[int], keepdims: int) -> Tensor:
    """The sum along axes (all if none is named) in 32 bits, with a sign if data have one."""
    total = reduce(sum_, data.to(torch.int64), axes, keepdims)
    return total.to(torch.int32 if data.dtype is torch.int8 else torch.uint32)


@kernel("DynamicQuantizeLSTM", domain=MS, outputs=3, T=_FLOAT, T2=BYTES)
def dynamic_quantize_lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    p: Tensor | None,
    w_scale: Tensor,
    w_zero_point: Tensor,
    r_scale: Tensor,
    r_zero_point: Tensor,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Tensor, ...]:
    """LSTM with w and r of bytes [directions, inputs, gates]; x and h are rounded to bytes too.

    The range of x is that of all times, the range of h that of one step.
    """
    return run(
        x,
        _transposed(w, w_scale, w_zero_point),
        _transposed(r, r_scale, r_zero_point),
        b,
        sequence_lens,
        initial_h,
        initial_c,
        p,
        activation_alpha=activation_alpha,
        activation_beta=activation_beta,
        activations=activations,
        clip=clip,
        direction=direction,
        input_forget=input_forget,
        read=_as_bytes,
    )


def _as_bytes(x: Tensor) -> Tensor:
    """Real numbers as bytes can tell them apart, by their own range."""
    codes, scale, zero = dynamic_quantize_linear(x)
    return (codes.to(x.dtype) - zero.to(x.dtype)) * scale


def _transposed(q: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Real weights [directions, gates, inputs]; scales are one per direction, or per gate."""
    sizes = (len(q), 1, -1)
    shifted = q.to(torch.float32) - zero.reshape(sizes).to(torch.float32)
    return (shifted * scale.reshape(sizes)).mT
