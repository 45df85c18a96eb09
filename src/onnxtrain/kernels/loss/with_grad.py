"""Cross entropy together with its gradient: scores are read once, and may be overwritten."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from onnxtrain.kernels import blocks
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
    if quick := fast_rows(scores, labels, weights, dy):
        to = quick.Labels(labels, weights, ignore_index, reduction)
        pair: tuple[Tensor, Tensor] = quick.loss_and_grad(scores, to, dy, dtype, out)
        return pair
    if weights is None and (plain := _plain(scores, labels, dy, ignore_index, reduction, out)):
        return plain[0], plain[1].to(dtype)
    found, ignored = over_labels.usable(labels, scores.shape[1], ignore_index)
    each_weight = over_labels.sample_weights(found, ignored, weights, acc(scores.dtype))
    share = over_labels.shares(dy, each_weight, reduction)
    grad, each = torch.empty_like(scores) if out is None else out, torch.empty_like(each_weight)
    for rows in _blocks(scores):
        wide = torch.log_softmax(scores[rows], 1, dtype=acc(scores.dtype))
        left_out = None if ignored is None else ignored[rows]
        each[rows] = over_labels.losses(wide, found[rows], left_out, each_weight[rows])
        grad[rows] = over_labels.spread(wide, found[rows], left_out, share[rows])
    return grad, over_labels.reduce(each, each_weight, reduction).to(dtype)


def _blocks(scores: Tensor) -> Iterator[slice]:
    """All rows, on a CPU so many at once that their log probabilities stay in its cache."""
    count = len(scores)
    step = count if scores.is_cuda else max(1, blocks.size() // math.prod(scores.shape[1:]))
    for first in range(0, count, step):
        yield slice(first, first + step)


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
