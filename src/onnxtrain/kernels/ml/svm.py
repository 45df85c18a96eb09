"""Support vector machines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.ml.scores import (
    NUMBERS,
    Numbers,
    constant,
    given_type,
    labelled,
    like,
    numbers,
    real,
    transformed,
)
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import ML

_ENDS = 1e-7
"""How close a probability of one class against another comes to 0 and 1."""
_ROUNDS = 100


@kernel("SVMClassifier", domain=ML, outputs=2, T1=NUMBERS)
def svm_classifier(
    x: Tensor,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Numbers,
    kernel_params: Sequence[float] = (0.0, 0.0, 0.0),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] = (),
    prob_b: Sequence[float] = (),
    rho: Numbers,
    support_vectors: Sequence[float] = (),
    vectors_per_class: Sequence[int] = (),
) -> tuple[Any, Tensor]:
    """The label with the most votes, and the scores.

    Each pair of classes has a decision value; it is a vote for one of both. The scores are these
    values, or with prob_a and prob_b the probabilities of the classes that fit them best. Without
    support vectors there is a linear score for each class instead.
    """
    values = real(x)
    classes = max(len(classlabels_ints or classlabels_strings or ()), 1)
    if not sum(vectors_per_class):
        weights = numbers(coefficients, like(values)).reshape(classes, -1)
        scores = values @ weights.t() + rho[0]
        best = scores.argmax(1)
    else:
        vectors = constant(tuple(support_vectors), like(values)).reshape(sum(vectors_per_class), -1)
        close = _kernel(values, vectors, kernel_type, kernel_params)
        scores = _decisions(close, coefficients, rho, vectors_per_class)
        best = _votes(scores, classes).argmax(1)
        if prob_a:
            scores = _probabilities(scores, classes, prob_a, prob_b)
    scores = torch.cat([-scores, scores], 1) if scores.shape[1] == 1 and classes == 2 else scores
    label = labelled(best, classlabels_ints, classlabels_strings)
    return label, transformed(scores, post_transform).to(given_type(coefficients))


def _decisions(close: Tensor, coefficients: Numbers, rho: Numbers, sizes: Sequence[int]) -> Tensor:
    """[rows, pairs]: Σ coefficient · k(x, support vector) + rho for each pair of classes."""
    weights = numbers(coefficients, like(close)).reshape(-1, sum(sizes))
    ends = list(itertools.accumulate(sizes))
    parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    values = [
        close[:, parts[i]] @ weights[j - 1, parts[i]] + close[:, parts[j]] @ weights[i, parts[j]]
        for i, j in itertools.combinations(range(len(sizes)), 2)
    ]
    return torch.stack(values, 1) + numbers(rho[: len(values)], like(close))


def _votes(decisions: Tensor, classes: int) -> Tensor:
    """[rows, classes]: how many pairs decide for each class."""
    votes = decisions.new_zeros(len(decisions), classes)
    for index, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        first = decisions[:, index] > 0
        votes[:, i] += first
        votes[:, j] += ~first
    return votes


def _probabilities(
    decisions: Tensor, classes: int, a: Sequence[float], b: Sequence[float]
) -> Tensor:
    """[rows, classes]: the probabilities that fit those of all pairs best."""
    slope, shift = (constant(tuple(v), like(decisions)) for v in (a, b))
    first = torch.sigmoid(-(decisions * slope + shift)).clamp(_ENDS, 1 - _ENDS)
    pairwise = decisions.new_zeros(len(decisions), classes, classes)
    for index, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        pairwise[:, i, j] = first[:, index]
        pairwise[:, j, i] = 1 - first[:, index]
    diagonal = torch.diag_embed(pairwise.square().sum(1))
    return _coupled(diagonal - pairwise.mT * pairwise, classes)


def _coupled(q: Tensor, classes: int) -> Tensor:
    """The p with Σ p = 1 that makes p·q·p smallest; rows stop when they are close to it."""
    p = q.new_full(q.shape[:2], 1 / classes)
    for _ in range(max(_ROUNDS, classes)):
        slopes = (q @ p.unsqueeze(-1)).squeeze(-1)
        total = (p * slopes).sum(-1, keepdim=True)
        moving = (slopes - total).abs().amax(-1, keepdim=True) >= 0.005 / classes
        new = p
        for t in range(classes):
            step = (total - slopes[:, t : t + 1]) / q[:, t, t : t + 1]
            scale = 1 + step
            bend = step * (step * q[:, t, t : t + 1] + 2 * slopes[:, t : t + 1])
            total = (total + bend) / scale.square()
            new = (new + torch.nn.functional.one_hot(_index(t, p), classes) * step) / scale
            slopes = (slopes + step * q[:, t]) / scale
        p = torch.where(moving, new, p)
    return p


def _index(place: int, like: Tensor) -> Tensor:
    return torch.tensor(place, device=like.device)


@kernel("SVMRegressor", domain=ML, T=NUMBERS)
def svm_regressor(
    x: Tensor,
    *,
    coefficients: Numbers,
    kernel_params: Sequence[float] = (0.0, 0.0, 0.0),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Numbers,
    support_vectors: Sequence[float] = (),
) -> Tensor:
    """y = Σ coefficient · k(x, support vector) + rho, or only its sign for one class."""
    values = real(x)
    weights = numbers(coefficients, like(values))
    if n_supports:
        vectors = constant(tuple(support_vectors), like(values)).reshape(n_supports, -1)
        close = _kernel(values, vectors, kernel_type, kernel_params)
        scores = close @ weights
    else:
        scores = values @ weights
    scores = scores.unsqueeze(-1) + rho[0]
    if one_class:
        scores = torch.where(scores > 0, 1.0, -1.0)
    return transformed(scores, post_transform).to(given_type(coefficients))


def _kernel(x: Tensor, vectors: Tensor, kind: str, params: Sequence[float]) -> Tensor:
    """How close each x is to each support vector."""
    gamma, shift, degree = params
    if kind == "RBF":
        return torch.exp(-gamma * (x.unsqueeze(1) - vectors).square().sum(-1))
    product = x @ vectors.t()
    if kind == "LINEAR":
        return product
    if kind == "POLY":
        return (gamma * product + shift) ** int(degree)
    if kind == "SIGMOID":
        return torch.tanh(gamma * product + shift)
    raise ValueError(f"unknown kernel_type '{kind}'")
