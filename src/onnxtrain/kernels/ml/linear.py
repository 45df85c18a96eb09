"""Linear models and support vector regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.ml.scores import NUMBERS, constant, labelled, like, real, transformed
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import ML


@kernel("LinearRegressor", domain=ML, T=NUMBERS)
def linear_regressor(
    x: Tensor,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Tensor:
    """y = transform(x · coefficientsᵀ + intercepts), one column for each target."""
    scores = _linear(real(x), coefficients, intercepts, targets)
    return transformed(scores, post_transform).to(torch.float32)


def _linear(
    x: Tensor, coefficients: Sequence[float], intercepts: Sequence[float], targets: int
) -> Tensor:
    x = x.reshape(1, -1) if x.ndim == 1 else x
    scores = x @ constant(tuple(coefficients), like(x)).reshape(targets, -1).t()
    return scores + constant(tuple(intercepts), like(x)) if intercepts else scores


@kernel("LinearClassifier", domain=ML, outputs=2, T1=NUMBERS)
def linear_classifier(
    x: Tensor,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Any, Tensor]:
    """Label of the largest score, and all scores: transform(x · coefficientsᵀ + intercepts).

    A single score says how much speaks for the second of two classes.
    """
    values = real(x)
    rows = len(coefficients) // values.shape[-1]
    scores = _linear(values, coefficients, intercepts, rows)
    labels = len(classlabels_ints or classlabels_strings or ())
    if rows == 1 and labels == 2:
        scores = torch.cat([-scores, scores], 1)
    scores = transformed(scores, post_transform).to(torch.float32)
    if scores.shape[1] > 1:
        return labelled(scores.argmax(1), classlabels_ints, classlabels_strings), scores
    limit = 0.0 if post_transform == "NONE" else 0.5
    positive = (scores[:, 0] >= limit).to(torch.int64)
    names = ["", *classlabels_strings] if classlabels_strings else None
    return labelled(positive, [0, *(classlabels_ints or [1])], names), scores


@kernel("SVMRegressor", domain=ML, T=NUMBERS)
def svm_regressor(
    x: Tensor,
    *,
    coefficients: Sequence[float],
    kernel_params: Sequence[float] = (0.0, 0.0, 0.0),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float],
    support_vectors: Sequence[float] = (),
) -> Tensor:
    """y = Σ coefficient · k(x, support vector) + rho, or only its sign for one class."""
    values = real(x)
    weights = constant(tuple(coefficients), like(values))
    if n_supports:
        vectors = constant(tuple(support_vectors), like(values)).reshape(n_supports, -1)
        close = _kernel(values, vectors, kernel_type, kernel_params)
        scores = close @ weights
    else:
        scores = values @ weights
    scores = scores.unsqueeze(-1) + rho[0]
    if one_class:
        scores = torch.where(scores > 0, 1.0, -1.0)
    return transformed(scores, post_transform).to(torch.float32)


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
