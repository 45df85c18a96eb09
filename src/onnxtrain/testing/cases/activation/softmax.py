"""Rows for the softmax family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, derived, given, normal
from onnxtrain.testing.cases.math.elementwise import OLD_FLOATS
from onnxtrain.types import MS, DataType


def _rows(x: Tensor, axis: int) -> Tensor:
    """The last axes as one, as operators before opset 13 see a tensor."""
    return x.flatten(axis % x.ndim)


def _softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


def _log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.log_softmax(x, axis)


def _hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    chosen = torch.nn.functional.one_hot(x.argmax(axis), x.shape[axis])
    return chosen.movedim(-1, axis).to(x.dtype)


def _flat(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reference(x: Tensor, *, axis: int = 1) -> Tensor:
        return function(_rows(x, axis), axis=-1).reshape(x.shape)

    return reference


_FORWARD = {"Softmax": _softmax, "LogSoftmax": _log_softmax}
_NEW = [
    row
    for op, reference in _FORWARD.items()
    for row in (
        Case(op, [normal(3, 5)], reference, name="matrix"),
        Case(op, [normal(2, 3, 4)], reference, {"axis": 1}),
        Case(op, [normal(2, 3, 4)], reference, {"axis": -3}),
        Case(op, [normal(6)], reference, name="vector"),
        Case(op, [normal(2, 3)], reference, opset=13),
        Case(op, [normal(3, 50, scale=30)], reference, name="spread", gradient=False),
        Case(op, [normal(0, 4)], reference, name="empty", gradient=False),
        Case(op, [normal(2, 3000)], reference, name="long", gradient=False),
    )
]
_OLD = [
    Case(op, [normal(2, 3, 4)], _flat(reference), attributes, opset=opset, dtypes=OLD_FLOATS)
    for op, reference in _FORWARD.items()
    for opset, attributes in [(7, {}), (7, {"axis": 2}), (11, {"axis": -2}), (12, {"axis": 0})]
]
_TIES = given([[1.0, 3.0, 3.0], [2.0, 2.0, 1.0]])
_HARDMAX = [
    Case("Hardmax", [normal(2, 3, 4)], _hardmax, gradient=False),
    Case("Hardmax", [normal(2, 3, 4)], _hardmax, {"axis": 1}, gradient=False),
    Case("Hardmax", [_TIES], _hardmax, name="ties", gradient=False),
    *(
        Case(
            "Hardmax",
            [normal(2, 3, 4)],
            _flat(_hardmax),
            attributes,
            opset=opset,
            dtypes=OLD_FLOATS,
            gradient=False,
        )
        for opset, attributes in [(7, {}), (11, {"axis": -1}), (12, {"axis": 0})]
    ),
]


def _softmax_grad(dy: Tensor, y: Tensor, *, axis: int = -1) -> Tensor:
    return y * (dy - (y * dy).sum(axis, keepdim=True))


def _log_softmax_grad(dy: Tensor, y: Tensor, *, axis: int = -1) -> Tensor:
    return dy - y.exp() * dy.sum(axis, keepdim=True)


def _flat_grad(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reference(dy: Tensor, y: Tensor, *, axis: int = 1) -> Tensor:
        return function(_rows(dy, axis), _rows(y, axis), axis=-1).reshape(dy.shape)

    return reference


def _output_of(function: Any, *shape: int) -> Input:
    """Values that a function along the last axis returns."""
    return derived(
        lambda g: function(torch.randn(shape, generator=g, dtype=torch.float64), -1), grad=False
    )


def _grad_rows(
    op: str, forward: Any, reference: Any, attributes: list[dict[str, int]]
) -> list[Case]:
    return [
        Case(
            op,
            [normal(*shape), _output_of(forward, *shape)],
            reference,
            chosen,
            domain=MS,
            name=f"{len(shape)}d-{chosen.get('axis', 'default')}",
            gradient=False,
        )
        for shape in ((3, 5), (2, 3, 4))
        for chosen in attributes
        if chosen.get("axis", 0) < len(shape)
    ]


_GRADIENTS = [
    *_grad_rows(
        "SoftmaxGrad",
        torch.softmax,
        _flat_grad(_softmax_grad),
        [{}, {"axis": 0}, {"axis": 2}, {"axis": -1}],
    ),
    *_grad_rows("SoftmaxGrad_13", torch.softmax, _softmax_grad, [{}, {"axis": 0}, {"axis": 1}]),
    *_grad_rows(
        "LogSoftmaxGrad",
        torch.log_softmax,
        _flat_grad(_log_softmax_grad),
        [{}, {"axis": 0}, {"axis": 2}, {"axis": -1}],
    ),
    *_grad_rows(
        "LogSoftmaxGrad_13", torch.log_softmax, _log_softmax_grad, [{}, {"axis": 0}, {"axis": 1}]
    ),
    Case(
        "SoftmaxGrad_13",
        [normal(4, 0), normal(4, 0)],
        _softmax_grad,
        domain=MS,
        name="empty",
        gradient=False,
    ),
]


def _bias_softmax(x: Tensor, bias: Tensor, *, axis: int = 1, is_inner_broadcast: int) -> Tensor:
    rows, biases = _rows(x, axis), bias.reshape(-1, x.flatten(axis % x.ndim).shape[-1])
    rows = rows.reshape(-1, rows.shape[-1])
    repeats = rows.shape[0] // biases.shape[0]
    if is_inner_broadcast:
        biases = biases.repeat_interleave(repeats, 0)
    else:
        biases = biases.repeat(repeats, 1)
    return torch.softmax(rows + biases, -1).reshape(x.shape)


def _softmax_dropout_grad(
    dy: Tensor, mask: Tensor, y: Tensor, ratio: Tensor | None = None, *, axis: int
) -> Tensor:
    rate = 0.5 if ratio is None else float(ratio)
    return _flat_grad(_softmax_grad)(dy * mask / (1 - rate), y, axis=axis)


def _bias_softmax_dropout(
    x: Tensor, bias: Tensor, ratio: Tensor, **attributes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs when nothing is dropped."""
    y = _bias_softmax(x, bias, axis=attributes["axis"], is_inner_broadcast=0)
    return y, torch.ones(x.shape, dtype=torch.bool), y


_MASK = given([[True, False, True, True], [False, True, True, False]])
_FUSED = [
    Case(
        "BiasSoftmax",
        [normal(2, 3, 4, 5), normal(*bias)],
        _bias_softmax,
        {"axis": axis, "is_inner_broadcast": inner},
        domain=MS,
        name=name,
        gradient=False,
    )
    for name, bias, axis, inner in [
        ("inner", (2, 1, 1, 5), 3, 1),
        ("outer", (1, 3, 4, 5), 3, 0),
        ("flat", (1, 1, 4, 5), 2, 0),
        ("one-row", (5,), -1, 1),
        ("same", (2, 3, 4, 5), 3, 1),
    ]
]
_FUSED += [
    Case(
        "SoftmaxDropoutGrad",
        [normal(2, 4), _MASK, _output_of(torch.softmax, 2, 4), ratio],
        _softmax_dropout_grad,
        {"axis": 1},
        domain=MS,
        name=name,
        gradient=False,
    )
    for name, ratio in {"default": None, "quarter": given(0.25).no_grad()}.items()
]
_FUSED += [
    Case(
        "BiasSoftmaxDropout",
        [normal(2, 3, 4), normal(1, 3, 4), given(ratio, DataType.FLOAT, constant=True)],
        _bias_softmax_dropout,
        {"axis": 2, "is_inner_broadcast": 0, "seed": 5},
        domain=MS,
        outputs=3,
        compare=compare,
        name=f"ratio-{ratio}",
        gradient=False,
    )
    for ratio, compare in [(0.0, [0, 1, 2]), (0.25, [2])]
]

CASES: list[Case] = [*_NEW, *_OLD, *_HARDMAX, *_GRADIENTS, *_FUSED]
