"""Rows of fused convolutions, products and group normalizations outside ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.testing.case import Case, Input, apart, given, integers, normal, uniform
from onnxtrain.types import MS, DataType

ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "": lambda x: x,
    "Clip": lambda x, low, high: x.clamp(low, high),
    "Elu": lambda x, alpha: torch.where(x > 0, x, alpha * (x.clamp(max=0).exp() - 1)),
    "HardSigmoid": lambda x, alpha, beta: (alpha * x + beta).clamp(0, 1),
    "LeakyRelu": lambda x, alpha: torch.where(x > 0, x, alpha * x),
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Softmax": lambda x: x.softmax(-1),
    "Softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "Softsign": lambda x: x / (1 + x.abs()),
    "Tanh": torch.tanh,
    "ThresholdedRelu": lambda x, alpha: torch.where(x > alpha, x, 0 * x),
}


def _conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    group: int = 1,
    kernel_shape: Any = None,
    pads: Sequence[int] = (0, 0),
    strides: Sequence[int] = (1, 1),
) -> Tensor:
    rank = x.ndim - 2
    y = (functional.conv1d, functional.conv2d)[rank - 1](
        x, w, b, tuple(strides)[:rank], tuple(pads)[:rank], groups=group
    )
    return ACTIVATIONS[activation](y if z is None else y + z, *activation_params)


def _last(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of images [n, c, h, w] for images [n, h, w, c]; filters likewise."""

    def run(*images: Tensor | None, **attributes: Any) -> Tensor:
        moved = [x.movedim(-1, 1) if x is not None and x.ndim > 1 else x for x in images]
        return function(*moved, **attributes).movedim(1, -1)

    return run


def _images_last(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same with filters as they are for images [n, c, h, w]."""

    def run(x: Tensor, w: Tensor, *more: Tensor | None, **attributes: Any) -> Tensor:
        return _last(function)(x, w.movedim(1, -1), *more, **attributes)

    return run


def _images(name: str, more: list[Input | None], **attributes: Any) -> Case:
    if name in ACTIVATIONS:
        attributes["activation"] = name
    inputs = [normal(2, 6, 5, 3), normal(4, 3, 3, 3, scale=0.3), *more]
    return Case("NhwcFusedConv", inputs, _images_last(_conv), attributes, MS, name=name)


def _fused(name: str, params: Sequence[float] = (), **attributes: Any) -> Case:
    given_params = {"activation_params": tuple(params)} if params else {}
    return Case("FusedConv", [normal(2, 3, 5, 5), normal(4, 3, 3, 3, scale=0.3), normal(4)], _conv,
                {"activation": name, **given_params, **attributes}, MS, name=name)  # fmt: skip


_IMAGE, _FILTER = normal(2, 3, 6, 5), normal(4, 3, 3, 3, scale=0.3)
CONV = [
    Case("FusedConv", [_IMAGE, _FILTER], _conv, domain=MS, name="plain"),
    _fused("Relu"),
    _fused("Sigmoid"),
    _fused("Tanh"),
    _fused("LeakyRelu", [0.25]),
    _fused("Clip", [-0.5, 0.75]),
    _fused("HardSigmoid", [0.5, 0.25]),
    _fused("Relu", pads=(1, 1, 1, 1), strides=(2, 2)),
    Case("FusedConv", [_IMAGE, _FILTER, normal(4), normal(2, 4, 4, 3)], _conv,
         {"activation": "Relu"}, MS, name="sum"),
    Case("FusedConv", [_IMAGE, _FILTER, None, normal(2, 4, 4, 3)], _conv,
         {"activation": "Tanh"}, MS, name="sum-without-bias"),
    Case("FusedConv", [normal(2, 4, 7), normal(6, 2, 3)], _conv,
         {"activation": "Sigmoid", "group": 2}, MS, name="groups"),
    Case("NhwcConv", [normal(2, 6, 5, 3), normal(4, 3, 3, 3, scale=0.3), normal(4)], _last(_conv),
         {"pads": (1, 1, 1, 1), "strides": (2, 2)}, MS),
    Case("NhwcConv", [normal(2, 6, 5, 4), normal(4, 3, 3, 2)], _last(_conv), {"group": 2}, MS),
    _images("plain", [], pads=(1, 1, 1, 1), strides=(2, 2)),
    _images("Relu", [normal(4)]),
    _images("Tanh", [normal(4)]),
    _images("LeakyRelu", [normal(4)], activation_params=(0.25,)),
    _images("HardSigmoid", [normal(4)], activation_params=(0.5, 0.25)),
    _images("sum", [normal(4), normal(2, 4, 3, 4)], activation="Relu"),
    _images("sum-without-bias", [None, normal(2, 4, 3, 4)], activation="Tanh"),
    Case("NhwcFusedConv", [normal(2, 7, 4), normal(6, 2, 3)], _images_last(_conv),
         {"activation": "Sigmoid", "group": 2}, MS, name="groups"),
]  # fmt: skip


def _pool(x: Tensor, *, kernel_shape: Sequence[int], strides: Sequence[int] = (1, 1)) -> Tensor:
    real = x if x.is_floating_point() else x.to(torch.float64)
    return functional.max_pool2d(real, tuple(kernel_shape), tuple(strides)).to(x.dtype)


POOL = [
    Case("NhwcMaxPool", [apart(2, 5, 6, 3)], _last(_pool),
         {"kernel_shape": (2, 3), "strides": (2, 1)}, MS),
    *(
        Case("NhwcMaxPool", [integers(1, 5, 5, 2, low=low, high=low + 256, dtype=dtype)],
             _last(_pool), {"kernel_shape": (3, 3)}, MS, name=dtype.name.lower())
        for low, dtype in ((-128, DataType.INT8), (0, DataType.UINT8))
    ),
]  # fmt: skip


def _gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_axis: int = -1,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    y = alpha * ((a.mT if transA else a) @ (b.mT if transB else b))
    params = [p for p in (activation_alpha, activation_beta) if p is not None]
    return ACTIVATIONS[activation](y if c is None else y + beta * c, *params)


_PARAMS: dict[str, dict[str, float]] = {
    "Elu": {"activation_alpha": 0.5},
    "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4},
    "LeakyRelu": {"activation_alpha": 0.1},
    "Relu": {},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"activation_alpha": 0.25},
}
PRODUCTS = [
    *(
        Case("FusedGemm", [normal(3, 4), normal(4, 5), normal(5)], _gemm,
             {"activation": name, **params}, MS, name=name)
        for name, params in _PARAMS.items()
    ),
    Case("FusedGemm", [normal(4, 3), normal(5, 4), normal(3, 1)], _gemm,
         {"activation": "Tanh", "alpha": 0.5, "beta": 0.25, "transA": 1, "transB": 1}, MS),
    Case("FusedGemm", [normal(3, 4), normal(4, 5)], _gemm, domain=MS, name="plain"),
    *(
        Case("FusedMatMulActivation", [normal(2, 3, 4), normal(4, 5)], _gemm,
             {"activation": name, **params, "alpha": 0.5}, MS)
        for name, params in (("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.25}))
    ),
    Case("FusedMatMulActivation", [normal(2, 3, 4), normal(2, 5, 4)], _gemm,
         {"activation": "Softmax", "activation_axis": -1, "transB": 1}, MS),
    Case("TransposeMatMul", [normal(4, 3), normal(5, 4)], _gemm,
         {"transA": 1, "transB": 1, "alpha": 0.5}, MS),
    Case("TransposeMatMul", [normal(2, 3, 4), normal(4, 5)], _gemm, domain=MS, name="batch"),
]  # fmt: skip


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


def _fast_gelu(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    y = x @ w if bias is None else x @ w + bias
    return 0.5 * y * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3)))


def _split(x: Tensor, bias: Tensor) -> Tensor:
    left, right = (x + bias).chunk(2, -1)
    return left * _gelu(right)


BIAS = [
    Case("GemmFastGelu", [normal(2, 3, 4), normal(4, 5), normal(5)], _fast_gelu, domain=MS),
    Case("GemmFastGelu", [normal(3, 4), normal(4, 5)], _fast_gelu, domain=MS, name="no-bias"),
    Case("BiasAdd", [normal(2, 3, 4), normal(4), normal(2, 3, 4)],
         lambda x, bias, skip: x + bias + skip, domain=MS),
    Case("BiasSplitGelu", [normal(2, 3, 8), normal(8)], _split, domain=MS),
]  # fmt: skip


def _group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    groups: int,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Tensor:
    planes = x.movedim(-1, 1) if channels_last else x
    grouped = planes.reshape(len(x), groups, -1)
    centered = grouped - grouped.mean(-1, keepdim=True)
    n = centered / (centered.square().mean(-1, keepdim=True) + epsilon).sqrt()
    y = n.reshape(planes.shape) * gamma[:, None, None] + beta[:, None, None]
    y = y * torch.sigmoid(y) if activation else y
    return y.movedim(1, -1) if channels_last else y


def _skip_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    skip: Tensor,
    bias: Tensor | None = None,
    **attributes: Any,
) -> tuple[Tensor, Tensor]:
    at_end = attributes.get("channels_last", 1)
    if skip.ndim == 2:
        skip = skip[:, None, None] if at_end else skip[:, :, None, None]
    s = x + skip
    if bias is not None:
        s = s + (bias if at_end else bias[:, None, None])
    return _group_norm(s, gamma, beta, **attributes), s


def _norm(name: str, x: Input, *more: Input, **attributes: Any) -> Case:
    channels = [uniform(6, low=0.5, high=1.5), normal(6)]
    inputs = [x, *channels, *more]
    if more:
        return Case("SkipGroupNorm", inputs, _skip_norm, attributes, MS, outputs=2, name=name)
    return Case("GroupNorm", inputs, _group_norm, attributes, MS, name=name)


_CHANNELS_LAST, _CHANNELS_FIRST = normal(2, 3, 4, 6), normal(2, 6, 3, 4)
NORM = [
    _norm("last", _CHANNELS_LAST, groups=3, activation=0),
    _norm("silu", _CHANNELS_LAST, groups=2, activation=1, epsilon=1e-3),
    _norm("first", _CHANNELS_FIRST, groups=3, activation=1, channels_last=0),
    _norm("one-group", _CHANNELS_LAST, groups=1, activation=0),
    _norm("skip", _CHANNELS_LAST, normal(2, 3, 4, 6), normal(6), groups=3, activation=1),
    _norm("skip-rows", _CHANNELS_LAST, normal(2, 6), groups=3, activation=0),
    _norm("skip-first", _CHANNELS_FIRST, normal(2, 6), normal(6), groups=2, activation=1,
          channels_last=0),
    Case("GroupNorm", [_CHANNELS_LAST, normal(6).typed(DataType.FLOAT).no_grad(),
                       given([0.0] * 6, DataType.FLOAT)],
         lambda x, gamma, beta, **a: _group_norm(x, gamma.to(x.dtype), beta.to(x.dtype), **a),
         {"groups": 3, "activation": 1}, MS, name="float-parameters"),
]  # fmt: skip

CASES: list[Case] = [*CONV, *POOL, *PRODUCTS, *BIAS, *NORM]
