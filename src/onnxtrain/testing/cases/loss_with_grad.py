"""Rows of cross entropy that gives its gradient too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, given, integers, normal, uniform
from onnxtrain.types import FLOATS, OWN


def _both(
    scores: Tensor,
    labels: Tensor,
    dy: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int = -1,
    output_type: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    """softmax minus the label, each row times its share; and the loss."""
    counts = labels != ignore_index
    found = torch.where(counts, labels, 0).long()
    log_prob = scores - torch.logsumexp(scores, 1, keepdim=True)
    ones = torch.ones(scores.shape[1], dtype=scores.dtype)
    share = (ones if weights is None else weights)[found] * counts
    own = torch.nn.functional.one_hot(found, scores.shape[1]).movedim(-1, 1).to(scores.dtype)
    each = -(log_prob * own).sum(1) * share
    norm = share.sum() if reduction == "mean" else 1.0
    loss = each if reduction == "none" else each.sum() / norm
    grad = (log_prob.exp() - own) * (dy * share / norm).unsqueeze(1)
    return grad, loss


def _projected(
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    dy: Tensor,
    bias: Tensor | None = None,
    weights: Tensor | None = None,
    **attributes: Any,
) -> tuple[Tensor, ...]:
    """The loss of x·wᵀ + bias; the gradient of the scores goes on to x, w and the bias."""
    rows = x.flatten(0, -2)
    scores = rows @ w.T if bias is None else rows @ w.T + bias
    grad, loss = _both(scores, labels.flatten(), dy, weights, **attributes)
    found = (loss, (grad @ w).reshape(x.shape), grad.T @ rows)
    return found if bias is None else (*found, grad.sum(0))


CASES = [
    Case("CrossEntropyWithGrad", [normal(6, 5), integers(6, high=5), given(1.0)], _both,
         domain=OWN, outputs=2, dtypes=FLOATS),
    Case("CrossEntropyWithGrad", [normal(6, 5), given([0, 4, -100, 2, -100, 1]), given(0.5)], _both,
         {"ignore_index": -100, "reduction": "sum"}, domain=OWN, outputs=2, dtypes=FLOATS,
         name="ignored-sum"),
    Case("CrossEntropyWithGrad",
         [normal(3, 5, 4), integers(3, 4, high=5), normal(3, 4), uniform(5, low=0.2)], _both,
         {"reduction": "none"}, domain=OWN, outputs=2, dtypes=FLOATS, name="weights-none"),
    Case("CrossEntropyWithGrad",
         [normal(7, 9), integers(7, high=9), given(2.0), uniform(9, low=0.2)], _both, domain=OWN,
         outputs=2, dtypes=FLOATS, name="weights-mean"),
    Case("LinearCrossEntropyWithGrad",
         [normal(2, 3, 4), normal(5, 4), integers(2, 3, high=5), given(1.0)], _projected,
         domain=OWN, outputs=3, dtypes=FLOATS),
    Case("LinearCrossEntropyWithGrad",
         [normal(6, 4), normal(5, 4), given([0, 4, -100, 2, -100, 1]), given(0.5), normal(5),
          uniform(5, low=0.2)], _projected, {"ignore_index": -100, "reduction": "sum"},
         domain=OWN, outputs=4, dtypes=FLOATS, name="bias-weights"),
]  # fmt: skip
