"""Linear models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.ml.scores import (
    NUMBERS,
    Numbers,
    given_type,
    labelled,
    like,
    numbers,
    real,
    transformed,
)
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import ML


@kernel("LinearRegressor", domain=ML, T=NUMBERS)
def linear_regressor(
    x: Tensor,
    *,
    coefficients: Numbers,
    intercepts: Numbers = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Tensor:
    """y = transform(x · coefficientsᵀ + intercepts), one column for each target."""
    scores = _linear(real(x), coefficients, intercepts, targets)
    return transformed(scores, post_transform).to(given_type(coefficients))


def _linear(x: Tensor, coefficients: Numbers, intercepts: Numbers, targets: int) -> Tensor:
    x = x.reshape(1, -1) if x.ndim == 1 else x
    # onnxruntime leaves out those of features that the input does not have
    used = numbers(coefficients, like(x))[: targets * x.shape[-1]]
    scores = x @ used.reshape(targets, -1).t()
    return scores + numbers(intercepts, like(x)) if len(intercepts) else scores


@kernel("LinearClassifier", domain=ML, outputs=2, T1=NUMBERS)
def linear_classifier(
    x: Tensor,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Numbers,
    intercepts: Numbers = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Any, Tensor]:
    """Label of the largest score, and all scores: transform(x · coefficientsᵀ + intercepts).

    A single score says how much speaks for the second of two classes.
    """
    values = real(x)
    rows = len(intercepts) or len(coefficients) // values.shape[-1]
    scores = _linear(values, coefficients, intercepts, rows)
    labels = len(classlabels_ints or classlabels_strings or ())
    if rows == 1 and labels == 2:
        scores = torch.cat([-scores, scores], 1)
    scores = transformed(scores, post_transform).to(given_type(coefficients))
    if scores.shape[1] > 1:
        return labelled(scores.argmax(1), classlabels_ints, classlabels_strings), scores
    limit = 0.0 if post_transform == "NONE" else 0.5
    positive = (scores[:, 0] >= limit).to(torch.int64)
    names = ["", *classlabels_strings] if classlabels_strings else None
    return labelled(positive, [0, *(classlabels_ints or [1])], names), scores
