"""Rows for elementwise mathematics of floating point numbers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, apart, given, normal, only, shape_input, uniform
from onnxtrain.types import MS, DataType

OLD_FLOATS = only(DataType.FLOAT, DataType.FLOAT16, DataType.DOUBLE)
"""Floating point types of opset versions before bfloat16."""

_UNARY = [
    Case("Abs", [apart(3, 4)], torch.abs),
    Case("Acos", [uniform(3, 4, low=-0.9, high=0.9)], torch.acos),
    Case("Acosh", [uniform(3, 4, low=1.5, high=4)], torch.acosh),
    Case("Asin", [uniform(3, 4, low=-0.9, high=0.9)], torch.asin),
    Case("Asinh", [normal(3, 4)], torch.asinh),
    Case("Atan", [normal(3, 4)], torch.atan),
    Case("Atanh", [uniform(3, 4, low=-0.9, high=0.9)], torch.atanh),
    Case("Cos", [normal(3, 4)], torch.cos),
    Case("Cosh", [normal(3, 4)], torch.cosh),
    Case("Erf", [normal(3, 4)], torch.erf),
    Case("Exp", [normal(3, 4)], torch.exp),
    Case("Exp", [normal()], torch.exp, name="scalar"),
    Case("Exp", [normal(0, 3)], torch.exp, name="empty"),
    Case("Exp", [normal(2, 3)], torch.exp, opset=7, dtypes=OLD_FLOATS),
    Case("Log", [uniform(3, 4, low=0.1, high=5)], torch.log),
    Case("Neg", [normal(3, 4)], torch.neg),
    Case("Neg", [normal()], torch.neg, name="scalar"),
    Case("Reciprocal", [uniform(3, 4, low=0.5, high=3)], torch.reciprocal),
    Case("Sin", [normal(3, 4)], torch.sin),
    Case("Sinh", [normal(3, 4)], torch.sinh),
    Case("Sqrt", [uniform(3, 4, low=0.1, high=5)], torch.sqrt),
    Case("Sqrt", [uniform(2, low=0.1, high=5)], torch.sqrt, opset=7, dtypes=OLD_FLOATS),
    Case("Tan", [uniform(3, 4, low=-1.2, high=1.2)], torch.tan),
    Case("Tanh", [normal(3, 4)], torch.tanh),
    Case("Tanh", [normal(2, 0)], torch.tanh, name="empty"),
]
_HALVES = given([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.0])
_STEPS = [
    Case("Ceil", [normal(3, 4, scale=4)], torch.ceil, gradient=False),
    Case("Floor", [normal(3, 4, scale=4)], torch.floor, gradient=False),
    Case("Round", [normal(3, 4, scale=4)], torch.round, gradient=False),
    Case("Round", [_HALVES], torch.round, name="halves", gradient=False),
    Case("Round", [_HALVES], torch.round, opset=11, dtypes=OLD_FLOATS, gradient=False),
    Case("Sign", [apart(3, 4)], torch.sign, gradient=False),
    Case("Sign", [given([0.0, -2.0, 3.0])], torch.sign, name="zero", gradient=False),
]

_SHAPES = [
    ("same", (3, 4), (3, 4)),
    ("row", (2, 3, 4), (4,)),
    ("column", (3, 1), (1, 4)),
    ("scalar", (), (3, 2)),
    ("scalars", (), ()),
    ("empty", (0, 3), (3,)),
]


def _away_from_zero(*shape: int) -> Input:
    return uniform(*shape, low=0.5, high=2)


def _binary(op: str, reference: Any, right: Any = normal) -> list[Case]:
    return [Case(op, [normal(*a), right(*b)], reference, name=name) for name, a, b in _SHAPES]


_ARITHMETIC = [
    *_binary("Add", torch.add),
    *_binary("Sub", torch.sub),
    *_binary("Mul", torch.mul),
    *_binary("Div", torch.div, _away_from_zero),
    Case("Add", [normal(2, 3), normal(3)], torch.add, opset=7, dtypes=OLD_FLOATS),
    Case("Div", [normal(2, 3), _away_from_zero(3)], torch.div, opset=7, dtypes=OLD_FLOATS),
]


def _pow(x: Tensor, y: Tensor) -> Tensor:
    return torch.pow(x, y.to(x.dtype))


_POW = [
    Case("Pow", [_away_from_zero(3, 4), normal(3, 4)], _pow, name="same"),
    Case("Pow", [_away_from_zero(2, 3, 4), normal(4)], _pow, name="row"),
    Case("Pow", [_away_from_zero(4), normal(2, 3, 1)], _pow, name="column"),
    Case("Pow", [normal(3, 4), given(2.0).no_grad()], _pow, name="square"),
    Case("Pow", [normal(3, 4), given([2, 3, 1, 0])], _pow, name="int64-exponent"),
    Case("Pow", [normal(5), given([2, 3, 1, 0, 5], DataType.UINT8)], _pow, name="uint8-exponent"),
    Case(
        "Pow",
        [_away_from_zero(3, 4), given([0.5, -1.5, 2.0, 1.0], DataType.FLOAT)],
        _pow,
        name="float-exponent",
    ),
    Case("Pow", [_away_from_zero(3), normal(3)], _pow, opset=7, dtypes=OLD_FLOATS, gradient=False),
]


def _mod(a: Tensor, b: Tensor, fmod: int = 0) -> Tensor:
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


_MOD_OPERANDS = [given([5.5, -5.5, 5.5, -5.5, 1.25]), given([2.0, 2.0, -2.0, -2.0, 8.0])]
_MOD = [
    Case("Mod", _MOD_OPERANDS, _mod, name="floor"),
    Case("Mod", _MOD_OPERANDS, _mod, {"fmod": 1}, name="trunc"),
    Case("Mod", [given([[5.5], [-3.5]]), given([2.0, 8.0])], _mod, {"fmod": 1}, name="broadcast"),
    Case("Mod", _MOD_OPERANDS, _mod, {"fmod": 1}, opset=10, dtypes=OLD_FLOATS, gradient=False),
]


def _maximum(*xs: Tensor) -> Tensor:
    return functools.reduce(torch.maximum, xs)


def _minimum(*xs: Tensor) -> Tensor:
    return functools.reduce(torch.minimum, xs)


def _sum(*xs: Tensor) -> Tensor:
    return functools.reduce(torch.add, xs)


def _mean(*xs: Tensor) -> Tensor:
    return _sum(*xs) / len(xs)


_NAN = float("nan")
_VARIADIC = [
    Case(op, inputs, reference, name=name, gradient=name != "nan")
    for op, reference in {"Max": _maximum, "Min": _minimum, "Sum": _sum, "Mean": _mean}.items()
    for name, inputs in {
        "one": [normal(3, 2)],
        "two": [normal(3, 4), normal(3, 4)],
        "broadcast": [normal(2, 3, 4), normal(4), normal(3, 1)],
        "scalar": [normal(), normal(2)],
        "nan": [given([1.0, _NAN, 2.0]), given([_NAN, 3.0, 4.0])],
    }.items()
]
_VARIADIC += [
    Case("Sum", [normal(4) for _ in range(20)], _sum, name="many"),
    Case("Max", [normal(3), normal(3)], _maximum, opset=8, dtypes=OLD_FLOATS),
    Case("Sum", [normal(3), normal(3)], _sum, opset=6, dtypes=OLD_FLOATS, gradient=False),
]


def _clip(
    x: Tensor,
    low: Tensor | None = None,
    high: Tensor | None = None,
    **bounds: float,
) -> Tensor:
    low = x.new_tensor(bounds["min"]) if "min" in bounds else low
    high = x.new_tensor(bounds["max"]) if "max" in bounds else high
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


_LOW, _HIGH = given(-0.3).no_grad(), given(0.6).no_grad()
_CLIP = [
    Case("Clip", [apart(4, 5, gap=0.1), _LOW, _HIGH], _clip, name="both"),
    Case("Clip", [apart(4, 5, gap=0.1), _LOW], _clip, name="low"),
    Case("Clip", [apart(4, 5, gap=0.1), None, _HIGH], _clip, name="high"),
    Case("Clip", [apart(4, 5, gap=0.1)], _clip, name="none"),
    Case("Clip", [apart(4, 5), _HIGH, _LOW], _clip, name="crossed", gradient=False),
    Case("Clip", [normal(), _LOW, _HIGH], _clip, name="scalar", gradient=False),
    Case("Clip", [apart(4, 5, gap=0.1), _LOW, _HIGH], _clip, opset=11, dtypes=only(DataType.FLOAT)),
    Case(
        "Clip",
        [apart(4, 5, gap=0.1)],
        _clip,
        {"min": -0.25, "max": 0.5},
        opset=6,
        dtypes=OLD_FLOATS,
        gradient=False,
    ),
    Case("Clip", [apart(4, 5)], _clip, opset=7, dtypes=OLD_FLOATS, name="none"),
]


def _div_grad(dy: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return (dy / b).sum_to_size(a.shape), (-dy * a / (b * b)).sum_to_size(b.shape)


def _div_grad_row(name: str, a: tuple[int, ...], b: tuple[int, ...], **options: Any) -> Case:
    dy = normal(*torch.broadcast_shapes(a, b))
    inputs = [dy, normal(*a), _away_from_zero(*b)]
    return Case(
        "DivGrad", inputs, _div_grad, domain=MS, outputs=2, gradient=False, name=name, **options
    )


_DIV_GRAD = [
    *(_div_grad_row(name, a, b) for name, a, b in _SHAPES),
    _div_grad_row("channel", (2, 3, 4), (3, 1)),
    _div_grad_row("only-dA", (3, 1), (1, 4), empty=[1], compare=[0]),
    _div_grad_row("only-dB", (3, 1), (1, 4), empty=[0], compare=[1]),
]


def _cumulative(function: Any, unit: float) -> Any:
    def reference(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
        dim = int(axis)
        x = x.flip(dim) if reverse else x
        if exclusive:
            first = torch.full_like(x.narrow(dim, 0, 1), unit)
            x = torch.cat([first, x.narrow(dim, 0, x.shape[dim] - 1)], dim)
        y: Tensor = function(x, dim)
        return y.flip(dim) if reverse else y

    return reference


_CUMSUM = _cumulative(torch.cumsum, 0)
_SCANS = [
    Case(op, [normal(3, 4), given(axis, constant=constant)], reference, attributes)
    for op, reference in {
        "CumSum": _CUMSUM,
        "CumProd": _cumulative(torch.cumprod, 1),
    }.items()
    for axis, constant, attributes in [
        (0, True, {}),
        (-1, True, {"exclusive": 1}),
        (1, False, {"reverse": 1}),
        (-2, True, {"exclusive": 1, "reverse": 1}),
    ]
]
_SCANS += [
    Case("CumSum", [normal(5), shape_input(0)], _CUMSUM, name="axis-vector", gradient=False),
    Case("CumSum", [uniform(500), given(0)], _CUMSUM, name="long", gradient=False),
    Case("CumSum", [normal(0, 3), given(0)], lambda x, axis: x, name="empty", gradient=False),
]

CASES: list[Case] = [
    *_UNARY,
    *_STEPS,
    *_ARITHMETIC,
    *_POW,
    *_MOD,
    *_VARIADIC,
    *_CLIP,
    *_DIV_GRAD,
    *_SCANS,
]
