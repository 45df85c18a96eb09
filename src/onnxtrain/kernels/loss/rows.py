"""Rows of scores on a CPU, with a label each: what torch's own operators do in a few calls.

They sum in the type of the scores, and so serve float32 and float64 alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import blocks

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
"""Numbers of reductions in torch's operators."""
_WIDE = (torch.float32, torch.float64)
aten = torch.ops.aten


def takes(scores: Tensor, weights: Tensor | None, dy: Tensor | None = None) -> bool:
    """Whether these are rows that torch takes, with weights and a gradient of their type."""
    if scores.ndim != 2 or scores.is_cuda or scores.dtype not in _WIDE:
        return False
    # torch has no gradient of weights
    if weights is not None and blocks.recorded(weights):
        return False
    return all(t is None or t.dtype == scores.dtype for t in (weights, dy))


def loss(
    log_prob: Tensor, labels: Tensor, weights: Tensor | None, ignore_index: int, reduction: str
) -> tuple[Tensor, Tensor] | None:
    """The loss and, for ``mean``, the sum of weights; None if that is 0 or a label no class."""
    options = (labels.to(torch.int64), weights, _REDUCTIONS[reduction], ignore_index)
    try:
        found, total = aten.nll_loss_forward(log_prob, *options)
    except IndexError:
        return None
    return None if reduction == "mean" and not float(total) else (found, total)


def grad(
    dy: Tensor,
    log_prob: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    ignore_index: int,
    reduction: str,
    total: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient of the scores from what ``loss`` gave; exactly 0 where ignored."""
    labels = labels.to(torch.int64)
    dy = dy.reshape(labels.shape if reduction == "none" else ())
    options = (labels, weights, _REDUCTIONS[reduction], ignore_index, total)
    inner = aten.nll_loss_backward(dy, log_prob, *options)
    found = torch._log_softmax_backward_data(inner, log_prob, 1, log_prob.dtype, out=out)
    return clear(found, labels == ignore_index)


def picked_grad(dy: Tensor, log_prob: Tensor, labels: Tensor) -> Tensor:
    """-dy at the label of each row, and 0 elsewhere; labels are classes, none is ignored."""
    options = (labels, None, _REDUCTIONS["none"], -1, dy.new_zeros(()))
    found: Tensor = aten.nll_loss_backward(dy, log_prob, *options)
    return found


def clear(grad: Tensor, ignored: Tensor) -> Tensor:
    """A gradient with zeros in some rows, even if their scores are not numbers."""
    # a CPU fills by masks at the price of a copy
    rows = ignored.nonzero().squeeze(1)
    return grad.index_fill_(0, rows, 0.0) if len(rows) else grad
