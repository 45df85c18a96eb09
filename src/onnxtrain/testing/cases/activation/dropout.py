"""Rows for what dropout does without drawing: inference, a ratio of 0, and gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, normal
from onnxtrain.testing.cases.math.elementwise import OLD_FLOATS
from onnxtrain.types import MS, DataType


def _kept(x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return x, torch.ones(x.shape, dtype=torch.bool)


def _kept_in_type(x: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    return x, torch.ones_like(x)


def _kept_words(x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return x, torch.full((-(-x.numel() // 32),), 2**32 - 1)


def _ratio(value: float) -> Input:
    return given(value, DataType.FLOAT, constant=True)


_TRAINING, _INFERENCE = given(True, constant=True), given(False, constant=True)
_INPUTS: dict[str, list[Input | None]] = {
    "plain": [normal(3, 5)],
    "ratio": [normal(3, 5), _ratio(0.75)],
    "inference": [normal(3, 5), _ratio(0.75), _INFERENCE],
    "zero": [normal(5, 13), _ratio(0.0), _TRAINING],
    "no-ratio": [normal(3, 5), None, _INFERENCE],
    "run-time": [normal(3, 5), given(0.5, DataType.FLOAT), given(False)],
}
_GRAD_INPUTS: dict[str, list[Input | None]] = {
    "default": [],
    "quarter": [_ratio(0.25)],
    "training": [_ratio(0.25), _TRAINING],
    "inference": [_ratio(0.25), _INFERENCE],
    "zero": [_ratio(0.0), _TRAINING],
    "no-ratio": [None, _TRAINING],
}
_FORWARD = [
    Case(
        op,
        inputs,
        reference,
        domain=domain,
        outputs=outputs,
        name=f"{name}-{outputs}",
        gradient=op == "Dropout",
    )
    for op, domain, reference in [
        ("Dropout", "", _kept),
        ("BitmaskDropout", MS, _kept_words),
    ]
    for outputs in (1, 2)
    for name, inputs in _INPUTS.items()
]
_FORWARD += [
    Case("Dropout", [normal(3, 5), _ratio(0.5)], _kept, opset=12, outputs=2, dtypes=OLD_FLOATS),
    Case("Dropout", [normal(3, 5)], _kept, opset=10, outputs=2, dtypes=OLD_FLOATS),
    Case(
        "Dropout",
        [normal(3, 5)],
        _kept_in_type,
        opset=7,
        outputs=2,
        dtypes=OLD_FLOATS,
        gradient=False,
    ),
    Case("Dropout", [normal(3, 5)], _kept_in_type, {"ratio": 0.25}, opset=9, dtypes=OLD_FLOATS),
]

_BITS = [True, False, True, True, False]
_WORD = given([13], DataType.UINT32)


def _grad(
    dy: Tensor, mask: Tensor, ratio: Tensor | None = None, training: Tensor | None = None, **_: Any
) -> Tensor:
    rate = 0.5 if ratio is None else float(ratio)
    if rate == 0 or (training is not None and not bool(training)):
        return dy
    kept = mask if mask.dtype is torch.bool else torch.tensor(_BITS).expand(dy.shape)
    return torch.where(kept, dy / (1 - rate), torch.zeros_like(dy))


_GRADIENTS = [
    Case(op, [normal(5), mask, *more], _grad, domain=MS, name=name, gradient=False)
    for op, mask in {"DropoutGrad": given(_BITS), "BitmaskDropoutGrad": _WORD}.items()
    for name, more in _GRAD_INPUTS.items()
]
_GRADIENTS += [
    Case(
        "DropoutGrad",
        [normal(3, 5), given([_BITS] * 3)],
        _grad,
        domain=MS,
        name="matrix",
        gradient=False,
    ),
    Case("DropoutGrad", [normal(5), given(_BITS)], _grad, {"seed": 7}, domain=MS, gradient=False),
]


def _bias_dropout(x: Tensor, bias: Tensor, residual: Tensor | None = None, *_: Any) -> Any:
    total = x + bias if residual is None else x + bias + residual
    return total, torch.ones(x.shape, dtype=torch.bool)


_BIAS_INPUTS: dict[str, list[Input | None]] = {
    "plain": [normal(3, 8), normal(8)],
    "residual": [normal(3, 8), normal(8), normal(3, 8), _ratio(0.5), _INFERENCE],
    "same-shape": [normal(3, 8), normal(3, 8), normal(3, 8), _ratio(0.0), _TRAINING],
}
_BIAS = [
    Case(
        op,
        inputs,
        _bias_dropout,
        domain=MS,
        outputs=2,
        compare=[0, 1] if op == "BiasDropout" else [0],
        name=name,
        gradient=False,
    )
    for op in ("BiasDropout", "BitmaskBiasDropout")
    for name, inputs in _BIAS_INPUTS.items()
]

CASES: list[Case] = [*_FORWARD, *_GRADIENTS, *_BIAS]
