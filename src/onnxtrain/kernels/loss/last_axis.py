"""Cross entropy with classes on the last axis: against probabilities, or weighted labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxtrain.kernels.loss import labels as over_labels
from onnxtrain.kernels.precision import acc, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, INTS, MS


@kernel("SoftmaxCrossEntropy", domain=MS, outputs=2, T=FLOATS)
def softmax_cross_entropy(
    logits: Tensor, label: Tensor, *, reduction: str = "mean"
) -> tuple[Tensor, Tensor]:
    """l_i = -sum over c of label[i, c] * log_softmax(logits)[i, c]; mean divides by the rows."""
    over_labels.check_reduction(reduction)
    if logits.shape != label.shape:
        raise ValueError(
            "the shape in logits and labels is not identical: "
            f"{tuple(logits.shape)} and {tuple(label.shape)}"
        )
    log_prob = torch.log_softmax(logits, -1)
    each = -(widen(log_prob) * label).sum(-1)
    if reduction == "mean":
        each = each.mean()
    elif reduction == "sum":
        each = each.sum()
    return each.to(logits.dtype), log_prob


@kernel("SoftmaxCrossEntropyGrad", domain=MS, T=FLOATS)
def softmax_cross_entropy_grad(
    dy: Tensor, log_prob: Tensor, label: Tensor, *, reduction: str = "mean"
) -> Tensor:
    """d = (exp(log_prob) - label) * dy / (number of rows if mean), for rows that sum to 1."""
    over_labels.check_reduction(reduction)
    share = widen(dy).unsqueeze(-1) if reduction == "none" else widen(dy).reshape(())
    if reduction == "mean":
        share = share / math.prod(log_prob.shape[:-1])
    return ((widen(log_prob).exp() - label) * share).to(log_prob.dtype)


@kernel("SparseSoftmaxCrossEntropy", since=9, outputs=2, T=FLOATS, Tind=INTS)
def sparse_softmax_cross_entropy(
    logits: Tensor, label: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> tuple[Tensor, Tensor]:
    """l_i = -log_softmax(logits)[i, label_i] * weight_i; mean divides by the sum of weights."""
    _check(logits, label, weight, reduction)
    log_prob = torch.log_softmax(logits, -1)
    rows, found, weights = _rows(log_prob, label, weight)
    each = over_labels.losses(rows, found, None, weights)
    loss = over_labels.reduce(each, weights, reduction)
    return (loss.reshape(label.shape) if reduction == "none" else loss).to(logits.dtype), log_prob


@kernel("SparseSoftmaxCrossEntropyGrad", since=9, T=FLOATS, Tind=INTS)
def sparse_softmax_cross_entropy_grad(
    dy: Tensor,
    log_prob: Tensor,
    label: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """d[i, c] = dy * w_i * (exp(log_prob[i, c]) - [c == label_i]) / (sum of weights if mean)."""
    _check(log_prob, label, weight, reduction)
    rows, found, weights = _rows(log_prob, label, weight)
    grad = over_labels.logits_grad(dy, rows, found, None, weights, reduction)
    return grad.reshape(log_prob.shape)


def _check(logits: Tensor, label: Tensor, weight: Tensor | None, reduction: str) -> None:
    over_labels.check_reduction(reduction)
    if logits.shape[:-1] != label.shape:
        raise ValueError(
            "logits_shape must be label_shape and the classes: "
            f"{tuple(logits.shape)} and {tuple(label.shape)}"
        )
    if label.numel() == 0:
        raise ValueError("label tensor must not be empty")
    if weight is not None and weight.shape != label.shape:
        raise ValueError(
            "the shape in weights and labels is different: "
            f"{tuple(weight.shape)} and {tuple(label.shape)}"
        )


def _rows(log_prob: Tensor, label: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Log probabilities as a matrix, with a label and a weight for each row."""
    classes = log_prob.shape[-1]
    found, _ = over_labels.usable(label.reshape(-1), classes, None)
    work = acc(log_prob.dtype)
    if weight is None:
        weights = torch.ones(found.shape, dtype=work, device=found.device)
    else:
        weights = weight.reshape(-1).to(work)
    return log_prob.reshape(-1, classes), found, weights
