"""Rows for cross entropy with classes on the last axis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.autograd import pulled_back
from onnxtrain.testing.case import Case, Input, given, integers, normal, uniform
from onnxtrain.types import MS

REDUCTIONS = ("mean", "sum", "none")


def _soft(logits: Tensor, label: Tensor, reduction: str = "mean") -> tuple[Tensor, Tensor]:
    log_prob = logits.log_softmax(-1)
    each = -(label * log_prob).sum(-1)
    return {"mean": each.mean(), "sum": each.sum(), "none": each}[reduction], log_prob


def _soft_grad(dy: Tensor, log_prob: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    rows = log_prob.numel() // log_prob.shape[-1] if reduction == "mean" else 1
    dy = dy.unsqueeze(-1) if reduction == "none" else dy
    return (log_prob.exp() - label) * dy / rows


def _sparse(
    logits: Tensor, label: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> tuple[Tensor, Tensor]:
    log_prob = logits.log_softmax(-1)
    each = -log_prob.gather(-1, label.unsqueeze(-1)).squeeze(-1)
    weight = torch.ones_like(each) if weight is None else weight
    total = {"mean": (each * weight).sum() / weight.sum(), "sum": (each * weight).sum()}
    return total.get(reduction, each * weight), log_prob


def _sparse_grad(
    dy: Tensor, log_prob: Tensor, label: Tensor, weight: Tensor | None = None, **attributes: Any
) -> Tensor:
    [grad] = pulled_back(lambda x: _sparse(x, label, weight, **attributes)[0], [log_prob], dy)
    return grad


_PROBABILITIES = Input(lambda g: normal(2, 3, 5).make(g).softmax(-1), grad=False)
_LAST_PROBABILITIES = Input(lambda g: normal(2, 3, 5).make(g).log_softmax(-1), grad=False)
_LAST_AXIS = [
    row
    for reduction in REDUCTIONS
    for dy in [normal(2, 3) if reduction == "none" else uniform(low=0.5, high=2)]
    for row in (
        Case(
            "SoftmaxCrossEntropy",
            [normal(2, 3, 5), _PROBABILITIES],
            _soft,
            {"reduction": reduction},
            domain=MS,
            outputs=2,
            gradient=False,
        ),
        Case(
            "SoftmaxCrossEntropyGrad",
            [dy, _LAST_PROBABILITIES, _PROBABILITIES],
            _soft_grad,
            {"reduction": reduction},
            domain=MS,
            gradient=False,
        ),
        *(
            case
            for weight in (None, uniform(2, 3, low=0.5, high=2))
            for name in [f"{reduction}_{'weights' if weight else 'plain'}"]
            for case in (
                Case(
                    "SparseSoftmaxCrossEntropy",
                    [normal(2, 3, 5), integers(2, 3, high=5), weight],
                    _sparse,
                    {"reduction": reduction},
                    outputs=2,
                    gradient=False,
                    name=name,
                ),
                Case(
                    "SparseSoftmaxCrossEntropyGrad",
                    [dy, _LAST_PROBABILITIES, integers(2, 3, high=5), weight],
                    _sparse_grad,
                    {"reduction": reduction},
                    gradient=False,
                    name=name,
                ),
            )
        ),
    )
]
_LAST_AXIS += [
    Case(
        "SparseSoftmaxCrossEntropy",
        [normal(3, 5), integers(3, high=5), given(torch.zeros(3))],
        lambda logits, label, weight: (logits.sum() * 0, logits.log_softmax(-1)),
        outputs=2,
        gradient=False,
        name="no_weight",
    ),
    Case(
        "SparseSoftmaxCrossEntropyGrad",
        [
            given(1.0),
            Input(lambda g: normal(3, 5).make(g).log_softmax(-1)),
            integers(3, high=5),
            given(torch.zeros(3)),
        ],
        lambda dy, log_prob, label, weight: log_prob * 0,
        gradient=False,
        name="no_weight",
    ),
]

CASES = _LAST_AXIS
