"""Cross entropy together with its gradient: scores are read once, and may be overwritten."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from onnxtrain.kernels import blocks
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.loss import labels as over_labels
from onnxtrain.kernels.loss import rows
from onnxtrain.kernels.loss.cross_entropy import fast_rows
from onnxtrain.kernels.precision import acc, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, INTS, OWN


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
    if plain := _plain(scores, labels, dy, weights, ignore_index, reduction, out):
        return plain[0], plain[1].to(dtype)
    found, ignored = over_labels.usable(labels, scores.shape[1], ignore_index)
    each_weight = over_labels.sample_weights(found, ignored, weights, acc(scores.dtype))
    share = over_labels.shares(dy, each_weight, reduction)
    grad, each = torch.empty_like(scores) if out is None else out, torch.empty_like(each_weight)
    given = (scores, dy) if weights is None else (scores, dy, weights)
    at_once = scores.is_cpu and not blocks.recorded(*given)
    for here in _blocks(scores):
        data, left_out = scores[here], None if ignored is None else ignored[here]
        if at_once:
            picked = _from_softmax(data, found[here], left_out, share[here], grad[here])
            each[here] = over_labels.weighted(picked, left_out, each_weight[here])
        else:
            wide = over_labels.log_probabilities(data, acc(scores.dtype))
            each[here] = over_labels.losses(wide, found[here], left_out, each_weight[here])
            grad[here] = over_labels.spread(wide, found[here], left_out, share[here])
    return grad, over_labels.reduce(each, each_weight, reduction).to(dtype)


def _blocks(scores: Tensor) -> Iterator[slice]:
    """All rows, on a CPU so many at once that their log probabilities stay in its cache."""
    count = len(scores)
    step = count if scores.is_cuda else max(1, blocks.size() // math.prod(scores.shape[1:]))
    for first in range(0, count, step):
        yield slice(first, first + step)


def _from_softmax(
    scores: Tensor, labels: Tensor, ignored: Tensor | None, share: Tensor, out: Tensor
) -> Tensor:
    """(softmax(scores) - [c == label]) * share into ``out``; gives the labels' log probabilities.

    Exponentials are computed once, where a gradient from log probabilities computes them again.
    """
    wide, column = widen(scores), labels.unsqueeze(1)
    soft = torch.softmax(wide, 1)
    # the largest probability is never so small that its logarithm would be lost
    log_of_largest = soft.amax(1).log_()
    picked = wide.gather(1, column).squeeze(1).sub_(wide.amax(1)).add_(log_of_largest)
    soft.scatter_(1, column, soft.gather(1, column).sub_(1))
    soft.mul_(share.unsqueeze(1))
    out.copy_(soft if ignored is None else over_labels.cleared(soft, ignored))
    return picked


def _plain(
    scores: Tensor,
    labels: Tensor,
    dy: Tensor,
    weights: Tensor | None,
    ignore_index: int,
    reduction: str,
    out: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """The same on the CPU by a few operators of torch; None if they do not serve."""
    if not rows.takes(scores, weights, dy):
        return None
    log_prob = torch.log_softmax(scores, 1)
    options = (labels, weights, ignore_index, reduction)
    found = rows.loss(log_prob, *options)
    if found is None:
        return None
    # the scores may be overwritten now
    return rows.grad(dy, log_prob, *options, found[1], out), found[0]
