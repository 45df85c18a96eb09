"""Functions of whole numbers that stand for real ones: x ≈ (q - zero point)·scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.dtypes import from_torch
from onnxtrain.kernels.nn.pool import average_pool
from onnxtrain.kernels.quantization import BYTES, dequantize_linear, quantize_linear, quantized
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import BOOL, FLOATS, MS, DataType

Types = Sequence[tuple[int, Any]]
_FLOAT = frozenset({DataType.FLOAT})


@kernel("QuantizeLinear", domain=MS, needs=["out_types"], T1=FLOATS)
def ms_quantize_linear(
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    out_types: Types,
) -> Tensor:
    """y = saturate(round(x / y_scale) + y_zero_point), one scale or one per index of the axis."""
    return quantize_linear(x, y_scale, y_zero_point, axis=axis, out_types=out_types)


@kernel("DequantizeLinear", domain=MS, needs=["out_types"], T2=FLOATS)
def ms_dequantize_linear(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    out_types: Types,
) -> Tensor:
    """y = (x - x_zero_point)·x_scale, one scale or one per index of the axis."""
    return dequantize_linear(x, x_scale, x_zero_point, axis=axis, out_types=out_types)


def real(q: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """(q - zero)·scale with a single scale."""
    steps = q.to(torch.float32)
    return (steps if zero is None else steps - zero.to(torch.float32)) * scale.reshape(())


def whole(x: Tensor, scale: Tensor, zero: Tensor | None, like: Tensor) -> Tensor:
    """round(x / scale) + zero, saturated, in the type of ``like``."""
    shift = None if zero is None else zero.reshape(()).to(torch.float32)
    return quantized(x / scale.reshape(()), shift, from_torch(like.dtype))


def shifted(steps: Tensor, zero: Tensor | None, like: Tensor) -> Tensor:
    """round(steps + zero), saturated: halves go to the even number behind the shift."""
    moved = steps if zero is None else steps + zero.reshape(())
    return quantized(moved, None, from_torch(like.dtype))


@kernel("QLinearAdd", domain=MS, T=BYTES)
def qlinear_add(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    """c = a + b.

    Scales are divided first, as onnxruntime does: those of 0.1 and 0.2 have halves then.
    """
    left = real(a, a_scale / c_scale, a_zero_point)
    return shifted(left + real(b, b_scale / c_scale, b_zero_point), c_zero_point, a)


@kernel("QLinearMul", domain=MS, T=BYTES)
def qlinear_mul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    """c = a·b, the scales first."""
    one = torch.ones_like(a_scale)
    steps = real(a, one, a_zero_point) * real(b, one, b_zero_point)
    return shifted(steps * (a_scale * b_scale / c_scale).reshape(()), c_zero_point, a)


@kernel("QLinearSigmoid", domain=MS, T=BYTES)
def qlinear_sigmoid(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
) -> Tensor:
    """y = σ(x)."""
    return whole(torch.sigmoid(real(x, x_scale, x_zero_point)), y_scale, y_zero_point, x)


@kernel("QLinearLeakyRelu", domain=MS, T=BYTES)
def qlinear_leaky_relu(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 0.01,
) -> Tensor:
    """y = x where x ≥ 0, else α·x."""
    bent = functional.leaky_relu(real(x, x_scale, x_zero_point), alpha)
    return whole(bent, y_scale, y_zero_point, x)


@kernel("QLinearSoftmax", domain=MS, T=BYTES)
def qlinear_softmax(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = -1,
    opset: int,
) -> Tensor:
    """y = softmax(x) along an axis; before opset 13 over all axes from it on."""
    values = real(x, x_scale, x_zero_point)
    if opset < 13:
        first = axis % x.ndim
        rows = values.reshape(*x.shape[:first], -1)
        shares = torch.softmax(rows, -1).reshape(x.shape)
    else:
        shares = torch.softmax(values, axis)
    return whole(shares, y_scale, y_zero_point, x)


@kernel("QLinearGlobalAveragePool", domain=MS, T=BYTES)
def qlinear_global_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    channels_last: int = 0,
) -> Tensor:
    """y = mean of each channel."""
    axes = list(range(1, x.ndim - 1) if channels_last else range(2, x.ndim))
    mean = real(x, x_scale, x_zero_point).mean(axes, keepdim=True)
    return whole(mean, y_scale, y_zero_point, x)


@kernel("QLinearAveragePool", domain=MS, T=BYTES)
def qlinear_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """y = mean of each window."""
    values = real(x, x_scale, x_zero_point)
    mean = average_pool(
        values.movedim(-1, 1) if channels_last else values,
        kernel_shape=kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        pads=pads,
        strides=strides,
    )
    mean = mean.movedim(1, -1).contiguous() if channels_last else mean
    return shifted(mean / y_scale.reshape(()), y_zero_point, x)


@kernel("QLinearReduceMean", domain=MS, T=BYTES)
def qlinear_reduce_mean(
    data: Tensor,
    data_scale: Tensor,
    data_zero_point: Tensor | None,
    reduced_scale: Tensor,
    reduced_zero_point: Tensor | None = None,
    *,
    axes: Sequence[int],
    keepdims: int,
) -> Tensor:
    """The mean along axes."""
    mean = real(data, data_scale, data_zero_point).mean(list(axes), keepdim=bool(keepdims))
    return whole(mean, reduced_scale, reduced_zero_point, data)


@kernel("QLinearConcat", domain=MS, T8=BYTES, TF=_FLOAT)
def qlinear_concat(y_scale: Tensor, y_zero_point: Tensor, *inputs: Tensor, axis: int) -> Tensor:
    """Tensors beside each other, given as (tensor, scale, zero point), in the scale of y."""
    parts = [inputs[i : i + 3] for i in range(0, len(inputs), 3)]
    return torch.cat(
        [whole(real(*part), y_scale, y_zero_point, y_zero_point) for part in parts], axis
    )


@kernel("QLinearWhere", domain=MS, B=BOOL, T=BYTES, TF=_FLOAT)
def qlinear_where(
    condition: Tensor,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    z_scale: Tensor,
    z_zero_point: Tensor,
) -> Tensor:
    """x where the condition holds, else y."""
    left, right = real(x, x_scale, x_zero_point), real(y, y_scale, y_zero_point)
    return whole(torch.where(condition, left, right), z_scale, z_zero_point, x)
