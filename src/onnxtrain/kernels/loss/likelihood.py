"""Negative log likelihood of given log probabilities (classes on axis 1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.loss import labels as over_labels
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.types import FLOATS, INTS, MS


@kernel("NegativeLogLikelihoodLoss", since=12, T=FLOATS, Tind=INTS)
def negative_log_likelihood_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """l_i = -input[i, target_i] * weight[target_i]; mean divides by the sum of weights."""
    return _likelihood(input, target, weight, ignore_index, reduction)


@kernel(
    "NegativeLogLikelihoodLossInternal",
    "NegativeLogLikelihoodLossInternal2",
    domain=MS,
    host=["ignore_index"],
    T=FLOATS,
    Tind=INTS,
)
def negative_log_likelihood_loss_internal(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: Any = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """NegativeLogLikelihoodLoss with the ignored label as an input."""
    ignore = None if ignore_index is None else int(single(ignore_index))
    return _likelihood(input, target, weight, ignore, reduction)


def _likelihood(
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int | None,
    reduction: str,
) -> Tensor:
    """Negative targets count from the last class; a mean without any weight is NaN."""
    over_labels.check(log_prob, target, weight, reduction)
    classes = log_prob.shape[1]
    found, ignored = over_labels.usable(target, classes, ignore_index, low=-classes)
    found = torch.where(found < 0, found + classes, found)
    each_weight = over_labels.sample_weights(found, ignored, weight, acc(log_prob.dtype))
    each = over_labels.losses(log_prob, found, ignored, each_weight)
    if reduction == "mean":
        return (each.sum() / each_weight.sum()).to(log_prob.dtype)
    return over_labels.reduce(each, each_weight, reduction).to(log_prob.dtype)
