"""Cross entropy of scores with class labels (classes on axis 1), and its gradients.

Without an ``ignore_index`` the label -1 is ignored, as the reference's kernels do. The mean over
nothing but ignored labels is 0.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.loss import labels as over_labels
from onnxtrain.kernels.loss import rows
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.types import FLOATS, INTS, MS


@kernel("SoftmaxCrossEntropyLoss", since=12, outputs=2, T=FLOATS, Tind=INTS)
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int = -1,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    """l_i = -log_softmax(scores)[i, label_i] * w_i; w_i = weights[label_i]; mean: sum l / sum w."""
    return _loss(scores, labels, weights, ignore_index, reduction, scores.dtype)


@kernel("SoftmaxCrossEntropyLossGrad", domain=MS, T=FLOATS, Tind=INTS)
def softmax_cross_entropy_loss_grad(
    dy: Tensor,
    log_prob: Tensor,
    label: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -1,
    reduction: str = "mean",
) -> Tensor:
    """d[i, c] = dy * w_i * (exp(log_prob[i, c]) - [c == label_i]) / sum(w); 0 for ignored rows."""
    return _grad(dy, log_prob, label, weight, ignore_index, reduction)


@kernel(
    "SoftmaxCrossEntropyLossInternal",
    domain=MS,
    outputs=2,
    host=["ignore_index"],
    T=FLOATS,
    Tind=INTS,
)
def softmax_cross_entropy_loss_internal(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    ignore_index: Any = None,
    *,
    output_type: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    """SoftmaxCrossEntropyLoss with the ignored label as an input and a type for the outputs."""
    dtype = scores.dtype if output_type is None else to_torch(output_type)
    return _loss(scores, labels, weights, _ignored(ignore_index), reduction, dtype)


@kernel(
    "SoftmaxCrossEntropyLossInternalGrad", domain=MS, host=["ignore_index"], T=FLOATS, Tind=INTS
)
def softmax_cross_entropy_loss_internal_grad(
    dy: Tensor,
    log_prob: Tensor,
    label: Tensor,
    weight: Tensor | None = None,
    ignore_index: Any = None,
    bias: Tensor | None = None,
    *,
    output_type: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """SoftmaxCrossEntropyLossGrad + bias, in the type that is asked for."""
    dtype = log_prob.dtype if output_type is None else to_torch(output_type)
    ignore = _ignored(ignore_index)
    if bias is None:
        return _grad(dy, log_prob, label, weight, ignore, reduction).to(dtype)
    wide = log_prob.to(acc(log_prob.dtype))
    grad = _grad(dy, wide, label, weight, ignore, reduction)
    return (grad + bias.reshape(grad.shape)).to(dtype)


def _ignored(value: Any) -> int:
    return -1 if value is None else int(single(value))


def fast_rows(
    scores: Tensor, labels: Tensor, weights: Tensor | None, dy: Tensor | None = None
) -> ModuleType | None:
    """The Triton kernels for rows of scores, if they take these."""
    others = [t for t in (weights, dy) if t is not None]
    if fast.ready(scores, smallest=1, rows=True) and not blocks.recorded(*others):
        quick = fast.load("cross_entropy")
        if quick.takes(scores, labels, weights):
            return quick
    return None


def _loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    over_labels.check(scores, labels, weights, reduction)
    if quick := fast_rows(scores, labels, weights):
        to = quick.Labels(labels, weights, ignore_index, reduction)
        pair: tuple[Tensor, Tensor] = quick.loss(scores, to, dtype)
        return pair
    kind = torch.promote_types(scores.dtype, dtype)
    log_prob = over_labels.log_probabilities(scores, kind)
    if rows.takes(log_prob, weights):
        plain = rows.loss(log_prob, labels, weights, ignore_index, reduction)
        if plain is not None:
            return plain[0].to(dtype), log_prob.to(dtype)
    found, ignored = over_labels.usable(labels, scores.shape[1], ignore_index)
    each_weight = over_labels.sample_weights(found, ignored, weights, acc(kind))
    each = over_labels.losses(log_prob, found, ignored, each_weight)
    return over_labels.reduce(each, each_weight, reduction).to(dtype), log_prob.to(dtype)


def _grad(
    dy: Tensor,
    log_prob: Tensor,
    label: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    over_labels.check(log_prob, label, weight, reduction)
    if quick := fast_rows(log_prob, label, weight, dy):
        grad: Tensor = quick.grad(
            dy, log_prob, quick.Labels(label, weight, ignore_index, reduction)
        )
        return grad
    if rows.takes(log_prob, weight, dy):
        options = (label, weight, ignore_index, reduction)
        plain = rows.loss(log_prob, *options)
        if plain is not None:
            return rows.grad(dy, log_prob, *options, plain[1])
    found, ignored = over_labels.usable(label, log_prob.shape[1], ignore_index)
    each_weight = over_labels.sample_weights(found, ignored, weight, acc(log_prob.dtype))
    return over_labels.logits_grad(dy, log_prob, found, ignored, each_weight, reduction)
