"""Convolutions and products with what follows them, in one operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.math.matmul import fused_matmul, gemm
from onnxtrain.kernels.ms.activated import activated
from onnxtrain.kernels.nn.conv import conv
from onnxtrain.kernels.nn.max_pool import max_pool
from onnxtrain.kernels.precision import lacks_products, store, widen
from onnxtrain.kernels.products import of_rows
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS, DataType

_BYTES = frozenset({DataType.INT8, DataType.UINT8})


@kernel("FusedConv", domain=MS, T=FLOATS)
def fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str | None = None,
    activation_params: Sequence[float] = (),
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """y = f(Conv(x, w, b) + z)."""
    y = conv(
        x,
        w,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return activated(y if z is None else y + z, activation, activation_params)


@kernel("NhwcConv", domain=MS, T=FLOATS)
def nhwc_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Conv of [n, h, w, c] with filters [m, h, w, c/group]."""
    y = conv(
        x.movedim(-1, 1),
        w.movedim(-1, 1),
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return y.movedim(1, -1).contiguous()


@kernel("NhwcFusedConv", domain=MS, T=FLOATS)
def nhwc_fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str | None = None,
    activation_params: Sequence[float] = (),
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """FusedConv of [n, h, w, c] and z like y, with filters as in Conv: [m, c/group, h, w]."""
    y = fused_conv(
        x.movedim(-1, 1),
        w,
        b,
        None if z is None else z.movedim(-1, 1),
        activation=activation,
        activation_params=activation_params,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return y.movedim(1, -1).contiguous()


@kernel("NhwcMaxPool", domain=MS, T=FLOATS | _BYTES)
def nhwc_max_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """MaxPool of [n, h, w, c]."""
    y, _ = max_pool(
        x.movedim(-1, 1),
        kernel_shape=kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        dilations=dilations,
        pads=pads,
        strides=strides,
        wanted=(True,),
    )
    return y.movedim(1, -1).contiguous()


@kernel("FusedGemm", domain=MS, T=FLOATS)
def fused_gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    activation: str | None = None,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """y = f(α·a'·b' + β·c)."""
    y = gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return activated(y, activation, [activation_alpha, activation_beta, activation_gamma])


@kernel("GemmFastGelu", domain=MS, T=FLOATS)
def gemm_fast_gelu(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = gelu(x·w + bias), by its approximation with tanh."""
    pair = (widen(x), widen(w)) if lacks_products(x) else (x, w)
    y = widen(of_rows(*pair))
    y = y if bias is None else y + bias
    return store(functional.gelu(y, approximate="tanh"), x)


@kernel("TransposeMatMul", domain=MS, T=FLOATS)
def transpose_matmul(
    a: Tensor, b: Tensor, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> Tensor:
    """y = α·a'·b', each transposed or not."""
    return fused_matmul(a, b, alpha=alpha, transA=transA, transB=transB)


@kernel("FusedMatMulActivation", domain=MS, T=FLOATS)
def fused_matmul_activation(
    a: Tensor,
    b: Tensor,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_axis: int | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    """y = f(FusedMatMul(a, b)); the function may be a softmax along ``activation_axis``."""
    y = fused_matmul(
        a,
        b,
        alpha=alpha,
        transA=transA,
        transB=transB,
        transBatchA=transBatchA,
        transBatchB=transBatchB,
    )
    if activation == "Softmax":
        return torch.softmax(y, -1 if activation_axis is None else activation_axis)
    return activated(y, activation, [activation_alpha, activation_beta, activation_gamma])


@kernel("BiasAdd", domain=MS, T=FLOATS)
def bias_add(x: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    """y = x + bias + skip."""
    return store(widen(x) + bias + skip, x)


@kernel("BiasSplitGelu", domain=MS, T=FLOATS)
def bias_split_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """y = l·gelu(r), with x + bias = (l, r) along the last axis."""
    left, right = (widen(x) + bias).chunk(2, -1)
    return store(left * functional.gelu(right), x)
