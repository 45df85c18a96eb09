"""Rows for losses over class labels and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.autograd import pulled_back
from onnxtrain.testing.case import Case, Input, given, integers, normal, only, uniform
from onnxtrain.testing.cases import loss_last_axis, loss_with_grad
from onnxtrain.types import MS, DataType

FLOAT, FLOAT16 = DataType.FLOAT, DataType.FLOAT16
REDUCTIONS = ("mean", "sum", "none")
SHAPES: dict[str, tuple[int, ...]] = {"2d": (6, 5), "3d": (3, 5, 4), "4d": (2, 3, 2, 3)}
"""Shapes of scores: batch, classes, places."""


def _likelihood(
    log_prob: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    reduction: str,
    ignore_index: int | None,
) -> Tensor:
    """The loss as a sum over one-hot labels."""
    ignored = torch.zeros_like(labels, dtype=torch.bool)
    if ignore_index is not None:
        ignored = labels == ignore_index
    classes = log_prob.shape[1]
    one_hot = torch.nn.functional.one_hot(labels.masked_fill(ignored, 0).long() % classes, classes)
    one_hot = one_hot.movedim(-1, 1).to(log_prob.dtype) * (~ignored).unsqueeze(1)
    if weights is not None:
        one_hot = one_hot * weights.reshape(1, -1, *[1] * (log_prob.ndim - 2))
    each = -(one_hot * log_prob).sum(1)
    if reduction == "none":
        return each
    return each.sum() / one_hot.sum() if reduction == "mean" else each.sum()


def _cross_entropy(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    ignore: Tensor | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -1,
    output_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    log_prob = scores - torch.logsumexp(scores, 1, keepdim=True)
    index = ignore_index if ignore is None else int(ignore)
    return _likelihood(log_prob, labels, weights, reduction, index), log_prob


def _loss_only(*inputs: Any, **attributes: Any) -> Tensor:
    return _cross_entropy(*inputs, **attributes)[0]


def _cross_entropy_grad(
    dy: Tensor,
    log_prob: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    ignore: Tensor | None = None,
    bias: Tensor | None = None,
    **attributes: Any,
) -> Tensor:
    """Log probabilities are scores whose log softmax they are."""

    def loss(scores: Tensor) -> Tensor:
        return _loss_only(scores, labels, weights, ignore, **attributes)

    reduced = attributes.get("reduction", "mean") != "none"
    [grad] = pulled_back(loss, [log_prob], dy.reshape(()) if reduced else dy)
    return grad if bias is None else grad + bias.reshape(grad.shape)


def _labels(shape: tuple[int, ...], dtype: DataType = DataType.INT64, ignored: int = -1) -> Input:
    """A label for every place, some of them ignored."""

    def make(generator: torch.Generator) -> Tensor:
        places = (shape[0], *shape[2:])
        found = torch.randint(0, shape[1], places, generator=generator)
        return found.masked_fill(torch.rand(places, generator=generator) < 0.25, ignored)

    return Input(make, dtype, grad=False)


def _log_prob(*shape: int) -> Input:
    """Log probabilities over axis 1."""
    return Input(lambda g: normal(*shape).make(g).log_softmax(1), grad=False)


def _gradient(shape: tuple[int, ...], reduction: str) -> Input:
    """A gradient of the loss: one for every place, or a single one."""
    return normal(shape[0], *shape[2:]) if reduction == "none" else uniform(low=0.5, high=2)


def _forward(op: str, reference: Any, **options: Any) -> list[Case]:
    """All shapes and reductions, with and without weights and ignored labels."""
    return [
        Case(
            op,
            [normal(*shape), _labels(shape, kind, ignored), weights],
            reference,
            {"reduction": reduction, "ignore_index": ignored},
            name=f"{name}_{reduction}{suffix}",
            **options,
        )
        for name, shape in SHAPES.items()
        for reduction in REDUCTIONS
        for suffix, weights, kind, ignored in (
            ("", None, DataType.INT64, -100),
            ("_weights", uniform(shape[1], low=0.5, high=2).no_grad(), DataType.INT32, 1),
        )
    ]


_SPREAD = given(torch.tensor([[1000.0, -1000.0, 0.0], [0.5, 0.25, -3.0]]))
_CROSS_ENTROPY = [
    *_forward("SoftmaxCrossEntropyLoss", _cross_entropy, outputs=2, gradient=False),
    *_forward("SoftmaxCrossEntropyLoss", _loss_only),
    Case(
        "SoftmaxCrossEntropyLoss",
        [normal(6, 5), _labels((6, 5))],
        _cross_entropy,
        outputs=2,
        gradient=False,
        opset=12,
        name="ignores_minus_one",
    ),
    Case(
        "SoftmaxCrossEntropyLoss",
        [normal(3, 5), given([-1, -1, -1])],
        lambda scores, labels: (scores.sum() * 0, scores.log_softmax(1)),
        outputs=2,
        gradient=False,
        name="all_ignored",
    ),
    Case(
        "SoftmaxCrossEntropyLoss",
        [_SPREAD.no_grad(), given([0, 2])],
        _cross_entropy,
        outputs=2,
        dtypes=only(FLOAT, DataType.DOUBLE, DataType.BFLOAT16),
        gradient=False,
        name="large_scores",
    ),
]
_CROSS_ENTROPY_GRAD = [
    Case(
        "SoftmaxCrossEntropyLossGrad",
        [_gradient(shape, reduction), _log_prob(*shape), _labels(shape, kind, ignored), weights],
        _cross_entropy_grad,
        {"reduction": reduction, "ignore_index": ignored},
        domain=MS,
        gradient=False,
        name=f"{name}_{reduction}{suffix}",
    )
    for name, shape in SHAPES.items()
    for reduction in REDUCTIONS
    for suffix, weights, kind, ignored in (
        ("", None, DataType.INT64, -100),
        ("_weights", uniform(shape[1], low=0.5, high=2), DataType.INT32, 1),
    )
]
_NOT_A_NUMBER = given(torch.tensor([[float("nan")] * 3, [-1.0, -1.0, -1.25]]))
_CROSS_ENTROPY_GRAD += [
    Case(
        "SoftmaxCrossEntropyLossGrad",
        [given(torch.tensor([2.0])), _log_prob(6, 5), _labels((6, 5))],
        _cross_entropy_grad,
        domain=MS,
        gradient=False,
        name="ignores_minus_one",
    ),
    Case(
        "SoftmaxCrossEntropyLossGrad",
        [given(2.0), _log_prob(3, 5), given([-1, -1, -1])],
        lambda dy, log_prob, label: torch.zeros_like(log_prob),
        domain=MS,
        gradient=False,
        name="all_ignored",
    ),
    Case(
        "SoftmaxCrossEntropyLossGrad",
        [given(2.0), _NOT_A_NUMBER, given([-1, 2])],
        lambda dy, log_prob, label: torch.stack(
            [torch.zeros(3), 2 * (log_prob[1].exp() - torch.tensor([0.0, 0.0, 1.0]))]
        ),
        domain=MS,
        gradient=False,
        name="ignored_rows_are_zero",
    ),
]


def _internal(shape: tuple[int, ...], reduction: str, ignore: Any, output_type: int | None) -> Case:
    ignored = -1 if ignore is None else int(torch.tensor(ignore))
    attributes: dict[str, Any] = {"reduction": reduction}
    if output_type is not None:
        attributes["output_type"] = output_type
    return Case(
        "SoftmaxCrossEntropyLossInternal",
        [
            normal(*shape),
            _labels(shape, ignored=ignored),
            uniform(shape[1], low=0.5, high=2).no_grad(),
            None if ignore is None else given(ignore),
        ],
        _cross_entropy,
        attributes,
        domain=MS,
        outputs=2,
        gradient=False,
        name=f"{len(shape)}d_{reduction}_{ignore}_{output_type}",
    )


def _internal_grad(
    shape: tuple[int, ...], reduction: str, bias: Input | None, output_type: int | None
) -> Case:
    attributes: dict[str, Any] = {"reduction": reduction}
    if output_type is not None:
        attributes["output_type"] = output_type
        bias = None if bias is None else bias.typed(DataType(output_type))
    return Case(
        "SoftmaxCrossEntropyLossInternalGrad",
        [
            _gradient(shape, reduction),
            _log_prob(*shape),
            _labels(shape, ignored=2),
            uniform(shape[1], low=0.5, high=2),
            given(2),
            bias,
        ],
        _cross_entropy_grad,
        attributes,
        domain=MS,
        gradient=False,
        name=f"{len(shape)}d_{reduction}_{output_type}{'_bias' if bias else ''}",
    )


_INTERNAL = [
    *(_internal(shape, r, 2, None) for shape in SHAPES.values() for r in REDUCTIONS),
    _internal((6, 5), "mean", None, None),
    _internal((6, 5), "mean", [2], None),
    *(_internal(s, "mean", 2, t.value) for s in SHAPES.values() for t in (FLOAT, FLOAT16)),
    *(
        _internal_grad(shape, reduction, bias, output_type)
        for shape in SHAPES.values()
        for reduction in REDUCTIONS
        for bias in (None, normal(*shape))
        for output_type in (None, FLOAT16.value)
    ),
    _internal_grad((3, 5, 4), "sum", normal(60), None),
]


def _nll(
    log_prob: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    ignore: Tensor | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    index = ignore_index if ignore is None else int(ignore)
    return _likelihood(log_prob, labels, weights, reduction, index)


_LIKELIHOOD = [
    *_forward("NegativeLogLikelihoodLoss", _nll),
    *(
        Case(
            "NegativeLogLikelihoodLoss",
            [_log_prob(3, 5), integers(3, high=5)],
            _nll,
            opset=opset,
            gradient=False,
            name="plain",
        )
        for opset in (12, 13, 22)
    ),
    *(
        Case(
            op,
            [_log_prob(*shape), _labels(shape, ignored=2), weights, ignore],
            _nll,
            {"reduction": reduction},
            domain=MS,
            gradient=False,
            name=f"{name}_{reduction}_{'weights' if weights else 'plain'}",
        )
        for op in ("NegativeLogLikelihoodLossInternal", "NegativeLogLikelihoodLossInternal2")
        for name, shape in SHAPES.items()
        for reduction in REDUCTIONS
        for weights, ignore in ((None, None), (uniform(shape[1], low=0.5, high=2), given(2)))
    ),
    Case(
        "NegativeLogLikelihoodLossInternal2",
        [_log_prob(3, 5), given([1, -1, -5])],
        _nll,
        domain=MS,
        gradient=False,
        name="negative_targets_wrap",
    ),
    Case(
        "NegativeLogLikelihoodLossInternal2",
        [_log_prob(3, 5), given([2, 2, 2]), None, given(2)],
        _nll,
        domain=MS,
        gradient=False,
        name="all_ignored",
    ),
]


CASES = [
    *_CROSS_ENTROPY,
    *_CROSS_ENTROPY_GRAD,
    *_INTERNAL,
    *_LIKELIHOOD,
    *loss_last_axis.CASES,
    *loss_with_grad.CASES,
]
