"""Cross entropy together with its gradient: scores are read once, and may be overwritten."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.loss import labels as over_labels
from onnxtrain.kernels.loss.cross_entropy import fast_rows
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, INTS, OWN

_REDUCTIONS = {"mean": 1, "sum": 2}
"""Numbers of reductions in torch's operators."""


@kernel(
    "CrossEntropyWithGrad",
    domain=OWN,
    outputs=2,
    inplace=["scores"],
    T=FLOATS,
    Tind=INTS,
)
def cross_entropy_with_grad(
    scores: Tensor,
    labels: Tensor,
    dy: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int = -1,
    output_type: int | None = None,
    reduction: str = "mean",
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """d scores and the loss: what SoftmaxCrossEntropyLoss and its gradient for dy give."""
    over_labels.check(scores, labels, weights, reduction)
    dtype = scores.dtype if output_type is None else to_torch(output_type)
    if quick := fast_rows(scores, labels, weights):
        to = quick.Labels(labels, weights, ignore_index, reduction)
        pair: tuple[Tensor, Tensor] = quick.loss_and_grad(scores, to, dy, dtype, out)
        return pair
    if weights is None and (plain := _plain(scores, labels, dy, ignore_index, reduction, out)):
        return plain[0], plain[1].to(dtype)
    found, ignored = over_labels.usable(labels, scores.shape[1], ignore_index)
    each_weight = over_labels.sample_weights(found, ignored, weights, acc(scores.dtype))
    wide = torch.log_softmax(scores, 1, dtype=acc(scores.dtype))
    each = over_labels.losses(wide, found, ignored, each_weight)
    grad = over_labels.logits_grad(dy, wide, found, ignored, each_weight, reduction)
    grad = grad.to(scores.dtype) if out is None else out.copy_(grad)
    return grad, over_labels.reduce(each, each_weight, reduction).to(dtype)


def _plain(
    scores: Tensor,
    labels: Tensor,
    dy: Tensor,
    ignore_index: int,
    reduction: str,
    out: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """The same on the CPU by a few operators of torch; None if a label is ignored or no class."""
    if scores.is_cuda or scores.ndim != 2 or reduction not in _REDUCTIONS:
        return None
    if scores.dtype not in (torch.float32, torch.float64) or dy.dtype != scores.dtype:
        return None
    log_prob = torch.log_softmax(scores, 1)
    if labels.dtype is not torch.int64:
        labels = labels.to(torch.int64)
    options = (labels, None, _REDUCTIONS[reduction], ignore_index)
    try:
        loss, count = torch.ops.aten.nll_loss_forward(log_prob, *options)
    except IndexError:
        return None
    if float(count) != len(labels):
        return None
    grad = torch.ops.aten.nll_loss_backward(
        dy if dy.ndim == 0 else dy.reshape(()), log_prob, *options, count
    )
    # the scores may be overwritten now
    grad = torch._log_softmax_backward_data(grad, log_prob, 1, scores.dtype, out=out)
    return grad, loss
