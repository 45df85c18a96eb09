"""Whole numbers (and short floating point ones) for real ones: x ≈ (q - zero_point) · scale.

A scale is single, or one per index of an axis, or one per block of an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import from_torch, to_torch
from onnxtrain.kernels.narrow import WHOLE, convert
from onnxtrain.kernels.nn.conv import conv_integer
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOAT8, FLOATS, INTEGERS, DataType

Types = Sequence[tuple[int, Any]]
BYTES = frozenset({DataType.INT8, DataType.UINT8})
_FLOAT32 = frozenset({DataType.FLOAT})


@kernel("QuantizeLinear", since=10, needs=["out_types"])
def quantize_linear(
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
    out_types: Types,
) -> Tensor:
    """y = saturate(round(x / y_scale) + y_zero_point); the division in the type of the scale."""
    dtype = DataType(out_types[0][0] or output_dtype or _type_of(y_zero_point))
    exact = to_torch(precision) if precision else _division_type(y_scale.dtype)
    scale = aligned(y_scale.to(exact), x, axis, block_size)
    ratio = (x.to(exact) / scale).to(torch.float32)
    zero = None
    if y_zero_point is not None:
        zero = aligned(y_zero_point.to(torch.float32), x, axis, block_size)
    return quantized(ratio, zero, dtype, saturate)


def _type_of(zero_point: Tensor | None) -> DataType:
    return DataType.UINT8 if zero_point is None else from_torch(zero_point.dtype)


def _division_type(dtype: torch.dtype) -> torch.dtype:
    return dtype if from_torch(dtype) in FLOATS else torch.float32


def aligned(values: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """Scales or zero points in a shape that broadcasts against x."""
    if values.numel() == 1:
        return values.reshape(())
    if block_size:
        length = x.shape[axis]
        return values.repeat_interleave(block_size, axis).narrow(axis, 0, length)
    if values.ndim != 1 or not -x.ndim <= axis < x.ndim or len(values) != x.shape[axis]:
        raise ValueError(
            f"scales of shape {tuple(values.shape)} fit neither axis {axis} of "
            f"{tuple(x.shape)} nor blocks, as block_size is 0"
        )
    return values.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def quantized(ratio: Tensor, zero: Tensor | None, dtype: DataType, saturate: int = 1) -> Tensor:
    """Round, shift and saturate to an element type."""
    if dtype not in WHOLE and dtype not in INTEGERS:
        return convert(ratio if zero is None else ratio + zero, dtype, saturate)
    low, high = WHOLE.get(dtype) or _range(to_torch(dtype))
    rounded = ratio.round()
    return (rounded if zero is None else rounded + zero).clamp(low, high).to(to_torch(dtype))


def _range(dtype: torch.dtype) -> tuple[int, int]:
    info = torch.iinfo(dtype)
    return info.min, info.max


@kernel("DequantizeLinear", since=10, needs=["out_types"])
def dequantize_linear(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    out_types: Types,
) -> Tensor:
    """y = (x - x_zero_point) · x_scale, rounded once to the type of y."""
    exact = acc(x_scale.dtype)
    wide = x.to(exact)
    if x_zero_point is not None:
        wide = wide - aligned(x_zero_point.to(exact), x, axis, block_size)
    scale = aligned(x_scale.to(exact), x, axis, block_size)
    return (wide * scale).to(to_torch(out_types[0][0] or output_dtype or from_torch(x_scale.dtype)))


@kernel("DynamicQuantizeLinear", since=11, outputs=3, T1=_FLOAT32)
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y = saturate(round(x / scale) + zero_point) in uint8, with 0 and all of x in its range."""
    known = x if x.numel() else x.new_zeros(1)
    low, high = known.amin().clamp(max=0), known.amax().clamp(min=0)
    scale = torch.where(low == high, 1.0, high - low) / 255
    zero = (-low / scale).round().clamp(0, 255)
    return quantized(x / scale, zero, DataType.UINT8), scale, zero.to(torch.uint8)


@kernel("QLinearMatMul", since=10, T1=BYTES | FLOAT8, T2=BYTES | FLOAT8, T3=BYTES | FLOAT8)
def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    """y = quantized(dequantized(a) · dequantized(b)); the product itself is exact."""
    left = a.to(torch.float64) - _per_row(a_zero_point).to(torch.float64)
    right = b.to(torch.float64) - b_zero_point.to(torch.float64)
    factor = _per_row(a_scale) * b_scale / _per_row(y_scale)
    ratio = torch.matmul(left, right) * factor.to(torch.float64)
    zero = _per_row(y_zero_point).to(torch.float64)
    return quantized(ratio, zero, from_torch(y_zero_point.dtype))


def _per_row(values: Tensor) -> Tensor:
    """One value per row of a matrix, or a single one."""
    return values.unsqueeze(-1) if values.ndim == 1 and values.numel() > 1 else values


@kernel("QLinearConv", since=10, T1=BYTES, T2=BYTES, T3=BYTES)
def qlinear_conv(
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
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """y = quantized(Conv(dequantized(x), dequantized(w)) + b), b in units of x_scale · w_scale."""
    total = conv_integer(
        x,
        w,
        x_zero_point,
        w_zero_point,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    channels = [-1, *[1] * (x.ndim - 2)]
    if b is not None:
        total = total + b.reshape(channels)
    factor = (x_scale * w_scale / y_scale).to(torch.float64)
    ratio = total * (factor.reshape(channels) if factor.numel() > 1 else factor)
    return quantized(ratio, y_zero_point.to(torch.float64), from_torch(y_zero_point.dtype))
