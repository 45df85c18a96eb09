"""Rows for activations and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.testing.case import Case, Input, apart, given, normal, only
from onnxtrain.testing.cases.math.elementwise import OLD_FLOATS
from onnxtrain.testing.cases.math.integers import SIGNED, whole
from onnxtrain.types import FLOATS, INTEGERS, MS, OWN, DataType

_LEAK = 0.009999999776482582
_QUICK = 1.7020000219345093
_FLOAT = only(DataType.FLOAT)


def _leaky_relu(x: Tensor, *, alpha: float = _LEAK) -> Tensor:
    return torch.where(x >= 0, x, alpha * x)


def _elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(x >= 0, x, alpha * torch.expm1(x))


def _selu(
    x: Tensor, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323
) -> Tensor:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


def _celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(x >= 0, x, alpha * torch.expm1(x / alpha))


def _hard_sigmoid(x: Tensor, *, alpha: float = 0.20000000298023224, beta: float = 0.5) -> Tensor:
    return torch.clamp(alpha * x + beta, 0, 1)


def _hard_swish(x: Tensor) -> Tensor:
    return x * torch.clamp(x / 6 + 0.5, 0, 1)


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def _softsign(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


def _mish(x: Tensor) -> Tensor:
    return x * torch.tanh(_softplus(x))


def _thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(x > alpha, x, torch.zeros_like(x))


def _shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero))


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x >= 0, x, slope * x)


def _swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * torch.sigmoid(alpha * x)


def _swi_glu(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    return _swish(a, alpha=alpha) * b


def _quick_gelu(x: Tensor, *, alpha: float = _QUICK) -> Tensor:
    return _swish(x, alpha=alpha)


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return functional.gelu(x, approximate=approximate)


def _fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return _gelu(x if bias is None else x + bias, approximate="tanh")


def _bias_gelu(a: Tensor, b: Tensor) -> Tensor:
    return _gelu(a + b)


_POINTWISE = [
    Case("Relu", [apart(4, 5)], torch.relu),
    Case("Relu", [given(0.75)], torch.relu, name="scalar"),
    Case("Relu", [apart(0, 3)], torch.relu, name="empty"),
    Case("Relu", [apart(4)], torch.relu, opset=7, dtypes=OLD_FLOATS),
    Case("Relu", [whole(6, low=-9, high=9)], dtypes=SIGNED, name="integers", gradient=False),
    Case("LeakyRelu", [apart(4, 5)], _leaky_relu),
    Case("LeakyRelu", [apart(4, 5)], _leaky_relu, {"alpha": 0.25}),
    Case("LeakyRelu", [apart(4)], _leaky_relu, opset=7, dtypes=OLD_FLOATS),
    Case("Elu", [apart(4, 5, gap=0.25)], _elu),
    Case("Elu", [apart(4, 5, gap=0.25)], _elu, {"alpha": 0.75}),
    Case("Elu", [apart(4)], _elu, opset=7, dtypes=OLD_FLOATS, gradient=False),
    Case("Selu", [apart(4, 5, gap=0.25)], _selu),
    Case("Selu", [apart(4, 5, gap=0.25)], _selu, {"alpha": 1.5, "gamma": 2.0}),
    Case("Celu", [apart(4, 5, gap=0.25)], _celu),
    Case("Celu", [apart(4, 5, gap=0.25)], _celu, {"alpha": 2.0}),
    Case("Celu", [apart(4)], _celu, opset=12, dtypes=_FLOAT),
    Case("HardSigmoid", [apart(8, 8, gap=0.22)], _hard_sigmoid),
    Case("HardSigmoid", [apart(8, 8, gap=0.22)], _hard_sigmoid, {"alpha": 0.5, "beta": 0.25}),
    Case("HardSwish", [apart(8, 8, gap=0.23)], _hard_swish),
    Case("HardSwish", [apart(8)], _hard_swish, opset=14, dtypes=OLD_FLOATS),
    Case("Sigmoid", [normal(4, 5)], torch.sigmoid),
    Case("Sigmoid", [normal(4)], torch.sigmoid, opset=7, dtypes=OLD_FLOATS),
    Case("Softplus", [normal(4, 5)], _softplus),
    Case("Softplus", [given([-200.0, -60.0, 25.0, 79.0, 81.0, 200.0])], _softplus, name="far"),
    Case("Softsign", [apart(4, 5)], _softsign),
    Case("Mish", [normal(4, 5)], _mish),
    Case("Mish", [given([-30.0, 30.0, 200.0])], _mish, name="far", gradient=False),
    Case("Swish", [normal(4, 5)], _swish),
    Case("Swish", [normal(4, 5)], _swish, {"alpha": 1.5}),
    Case("SwiGLU", [normal(4, 5), normal(4, 5)], _swi_glu),
    Case("SwiGLU", [normal(4, 5), normal(4, 5)], _swi_glu, {"alpha": 0.5}),
    Case("ThresholdedRelu", [apart(8, 8)], _thresholded_relu),
    Case("ThresholdedRelu", [apart(8, 8)], _thresholded_relu, {"alpha": 0.25}),
    Case("ThresholdedRelu", [apart(8)], _thresholded_relu, opset=10, dtypes=OLD_FLOATS),
    Case("Shrink", [apart(8, 8)], _shrink, dtypes=OLD_FLOATS),
    Case("Shrink", [apart(8, 8)], _shrink, {"bias": 0.5, "lambd": 0.75}, dtypes=OLD_FLOATS),
    Case(
        "Shrink",
        [whole(8, high=9)],
        attributes={"bias": 1.5, "lambd": 4.0},
        dtypes=INTEGERS,
        name="integers",
        gradient=False,
    ),
    Case("PRelu", [apart(2, 3, 4), normal(3, 1)], _prelu, name="channel"),
    Case("PRelu", [apart(2, 3, 4), normal(2, 3, 4)], _prelu, name="same"),
    Case("PRelu", [apart(2, 3, 4), normal(1)], _prelu, name="one"),
    Case("PRelu", [apart(2, 3), normal(3)], _prelu, opset=7, dtypes=OLD_FLOATS, gradient=False),
    *(
        Case(
            "PRelu",
            [whole(6, low=low, high=9), whole(6, high=3)],
            dtypes=only(*dtypes),
            name=name,
            gradient=False,
        )
        for name, low, dtypes in [
            ("signed", -9, (DataType.INT32, DataType.INT64)),
            ("unsigned", 0, (DataType.UINT32, DataType.UINT64)),
        ]
    ),
]
_GELU = [
    Case("Gelu", [normal(4, 5)], _gelu),
    Case("Gelu", [normal(4, 5)], _gelu, {"approximate": "tanh"}),
    Case("Gelu", [normal(4, 5)], _gelu, domain=MS, name="ms"),
    Case("FastGelu", [normal(4, 5)], _fast_gelu, domain=MS),
    Case("FastGelu", [normal(4, 5), normal(5)], _fast_gelu, domain=MS, name="bias"),
    Case("BiasGelu", [normal(2, 4, 5), normal(5)], _bias_gelu, domain=MS),
    Case("QuickGelu", [normal(4, 5)], _quick_gelu, domain=MS),
    Case("QuickGelu", [normal(4, 5)], _quick_gelu, {"alpha": 1.25}, domain=MS),
]


def _gradient_of(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The gradient operator of a function, by torch's own differentiation."""

    def reference(dy: Tensor, x: Tensor, *more: Tensor, **attributes: Any) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (dx,) = torch.autograd.grad(forward(x, *more, **attributes), x, dy)
        return dx

    return reference


def _sigmoid_grad(dy: Tensor, y: Tensor) -> Tensor:
    return dy * y * (1 - y)


def _tanh_grad(dy: Tensor, y: Tensor) -> Tensor:
    return dy * (1 - y * y)


def _relu_grad(dy: Tensor, x: Tensor) -> Tensor:
    return torch.where(x > 0, dy, torch.zeros_like(dy))


def _leaky_relu_grad(dy: Tensor, y: Tensor, *, alpha: float = _LEAK) -> Tensor:
    return torch.where(y > 0, dy, alpha * dy)


def _grad_row(op: str, reference: Any, *inputs: Input, name: str = "", **attributes: Any) -> Case:
    return Case(
        op, inputs, reference, attributes, domain=MS, name=name or "default", gradient=False
    )


def _gelu_sum(approximate: str, gelu: Any) -> Case:
    """The gradient of Gelu and its sums over the rows."""

    def reference(dy: torch.Tensor, x: torch.Tensor, **_: Any) -> tuple[torch.Tensor, ...]:
        dx = _gradient_of(gelu)(dy, x)
        return dx, dx.sum((0, 1))

    return Case("GeluGradSum", [normal(2, 3, 5), normal(2, 3, 5)], reference,
                {"approximate": approximate}, domain=OWN, outputs=2, dtypes=FLOATS,
                gradient=False)  # fmt: skip


_TOUCHING_ZERO = given([-1.5, 0.0, 2.0, -0.0])
_GRADIENTS = [
    _grad_row("ReluGrad", _relu_grad, normal(4, 5), normal(4, 5)),
    _grad_row("ReluGrad", _relu_grad, normal(4), _TOUCHING_ZERO, name="zero"),
    _grad_row("ReluGrad", _relu_grad, normal(), normal(), name="scalar"),
    _grad_row("ReluGrad", _relu_grad, normal(0, 2), normal(0, 2), name="empty"),
    _grad_row("LeakyReluGrad", _leaky_relu_grad, normal(4, 5), normal(4, 5)),
    _grad_row(
        "LeakyReluGrad", _leaky_relu_grad, normal(4), _TOUCHING_ZERO, name="0.25", alpha=0.25
    ),
    _grad_row("SigmoidGrad", _sigmoid_grad, normal(4, 5), normal(4, 5)),
    _grad_row("TanhGrad", _tanh_grad, normal(4, 5), normal(4, 5)),
    _grad_row("GeluGrad", _gradient_of(_gelu), normal(4, 5), normal(4, 5)),
    _grad_row("FastGeluGrad", _gradient_of(_fast_gelu), normal(4, 5), normal(4, 5)),
    _gelu_sum("none", _gelu),
    _gelu_sum("tanh", _fast_gelu),
    _grad_row("QuickGeluGrad", _gradient_of(_quick_gelu), normal(4, 5), normal(4, 5)),
    _grad_row(
        "QuickGeluGrad",
        _gradient_of(_quick_gelu),
        normal(4, 5),
        normal(4, 5),
        name="1.25",
        alpha=1.25,
    ),
    _grad_row(
        "BiasGeluGrad_dX", _gradient_of(_bias_gelu), normal(2, 4, 5), normal(2, 4, 5), normal(5)
    ),
    _grad_row(
        "BiasFastGeluGrad_dX", _gradient_of(_fast_gelu), normal(4, 5), normal(4, 5), normal(5)
    ),
]


def _fake_quant(
    x: Tensor, scale: Tensor, zero_point: Tensor, *, quant_min: int = 0, quant_max: int = 255
) -> tuple[Tensor, Tensor]:
    q = torch.round(x / scale) + zero_point
    inside = (q >= quant_min) & (q <= quant_max)
    return (torch.clamp(q, quant_min, quant_max) - zero_point) * scale, inside


def _fake_quant_row(name: str, x: Input, scale: Any, zero_point: Any, **attributes: int) -> Case:
    return Case(
        "FakeQuant",
        [x, given(scale).no_grad(), given(zero_point).no_grad()],
        _fake_quant,
        attributes,
        domain=MS,
        outputs=2,
        dtypes=_FLOAT,
        name=name,
        gradient=False,
    )


_FAKE_QUANT = [
    _fake_quant_row("default", normal(4, 5, scale=8), 0.125, 10.0),
    _fake_quant_row("vector", normal(4, 5, scale=8), [0.25], [128.0]),
    _fake_quant_row("halves", given([0.5, 1.5, 2.5, -0.5, -1.5]), 1.0, 128.0),
    _fake_quant_row("limits", normal(4, 5, scale=8), 0.5, 0.0, quant_min=-8, quant_max=7),
    Case(
        "FakeQuant",
        [given([float("nan"), float("inf"), float("-inf")]), given(1.0), given(0.0)],
        lambda x, s, z: (torch.tensor([0.0, 255.0, 0.0]), torch.zeros(3, dtype=torch.bool)),
        domain=MS,
        outputs=2,
        dtypes=_FLOAT,
        name="not-finite",
        gradient=False,
    ),
    Case(
        "FakeQuantGrad",
        [normal(4), given([True, False, True, True])],
        lambda dy, mask: torch.where(mask, dy, torch.zeros_like(dy)),
        domain=MS,
        dtypes=_FLOAT,
        gradient=False,
    ),
]

CASES: list[Case] = [*_POINTWISE, *_GELU, *_GRADIENTS, *_FAKE_QUANT]
