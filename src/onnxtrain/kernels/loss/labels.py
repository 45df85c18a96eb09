"""What all losses over class labels share: checks, the labelled entry, reduction, gradient.

Log probabilities have their classes on axis 1, and labels the same shape without that axis.
Nothing here waits for a CUDA device; a wrong label is found by the host on CPU tensors only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.loss import rows

REDUCTIONS = ("mean", "sum", "none")


def check(scores: Tensor, labels: Tensor, weights: Tensor | None, reduction: str) -> None:
    """Refuse shapes that do not fit each other and unknown reductions."""
    check_reduction(reduction)
    if scores.ndim < 2:
        raise ValueError(f"scores must be at least 2-D, their shape is {tuple(scores.shape)}")
    expected = (scores.shape[0], *scores.shape[2:])
    if tuple(labels.shape) != expected:
        raise ValueError(f"labels have shape {tuple(labels.shape)}, the scores ask for {expected}")
    if labels.numel() == 0:
        raise ValueError("label tensor must not be empty")
    if weights is not None and weights.shape != (scores.shape[1],):
        raise ValueError(
            f"weight tensor has shape {tuple(weights.shape)}, "
            f"its size must equal the number of classes ({scores.shape[1]})"
        )


def check_reduction(reduction: str) -> None:
    """Refuse unknown reductions."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"unknown reduction '{reduction}', must be one of {', '.join(REDUCTIONS)}")


def usable(
    labels: Tensor, classes: int, ignore_index: int | None, low: int = 0
) -> tuple[Tensor, Tensor | None]:
    """Labels as indices (class 0 where ignored), and which ones are ignored."""
    found, ignored = labels.to(torch.int64), None
    ends = _ends(found)
    # on a CPU most batches show by their ends that no label is ignored
    if ignore_index is not None and (ends is None or ends[0] <= ignore_index <= ends[1]):
        ignored = found == ignore_index
        found = found.masked_fill(ignored, 0)
        ends = _ends(found)
    if ends is not None and (ends[0] < low or ends[1] >= classes):
        flat = found.reshape(-1)
        index = int(((flat < low) | (flat >= classes)).nonzero()[0])
        raise ValueError(
            f"label value {int(flat[index])} at index {index} is out of range [{low}, {classes})"
        )
    return found, ignored


def _ends(labels: Tensor) -> tuple[int, int] | None:
    """The smallest and the largest label; None on a GPU, for which nobody waits."""
    if labels.is_cuda:
        return None
    first, last = labels.aminmax()
    return int(first), int(last)


def sample_weights(
    labels: Tensor, ignored: Tensor | None, weights: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Weight of each label's class (1 by default), 0 for ignored labels."""
    if weights is None:
        found = torch.ones(labels.shape, dtype=dtype, device=labels.device)
    else:
        found = weights.to(dtype)[labels]
    return found if ignored is None else found.masked_fill(ignored, 0.0)


def losses(log_prob: Tensor, labels: Tensor, ignored: Tensor | None, weights: Tensor) -> Tensor:
    """-log_prob[label] * weight, exactly 0 where ignored."""
    return weighted(log_prob.gather(1, labels.unsqueeze(1)).squeeze(1), ignored, weights)


def weighted(picked: Tensor, ignored: Tensor | None, weights: Tensor) -> Tensor:
    """-picked * weight, exactly 0 where ignored."""
    each = -picked.to(weights.dtype) * weights
    return each if ignored is None else each.masked_fill(ignored, 0.0)


def reduce(each: Tensor, weights: Tensor, reduction: str) -> Tensor:
    """The losses themselves, their sum, or their sum by the sum of weights (0 if that is 0)."""
    if reduction == "none":
        return each
    total = each.sum()
    return over(total, weights.sum()) if reduction == "mean" else total


def over(numerator: Tensor, denominator: Tensor) -> Tensor:
    """A quotient, 0 if the denominator is 0."""
    return torch.where(denominator == 0, 0.0, numerator / denominator)


def shares(dy: Tensor, weights: Tensor, reduction: str) -> Tensor:
    """What the gradient of each row is multiplied by: dy * w_i / norm."""
    dy = dy.to(weights.dtype)
    share = (dy.reshape(weights.shape) if reduction == "none" else dy.reshape(())) * weights
    return over(share, weights.sum()) if reduction == "mean" else share


def logits_grad(
    dy: Tensor,
    log_prob: Tensor,
    labels: Tensor,
    ignored: Tensor | None,
    weights: Tensor,
    reduction: str,
) -> Tensor:
    """d[i, c] = dy * w_i / norm * (exp(log_prob[i, c]) - [c == label_i]), in log_prob's type.

    norm is the sum of weights for ``mean`` and 1 otherwise; all zeros if it is 0.
    """
    return spread(log_prob, labels, ignored, shares(dy, weights, reduction))


def spread(log_prob: Tensor, labels: Tensor, ignored: Tensor | None, share: Tensor) -> Tensor:
    """(exp(log_prob) - [c == label]) * share, in log_prob's type; exactly 0 where ignored."""
    # the gradient in log_prob is -share at the label; log softmax passes it on to the scores
    lost = share.to(log_prob.dtype)
    if log_prob.ndim == 2 and not log_prob.is_cuda:
        grad = rows.picked_grad(lost, log_prob, labels)
    else:
        grad = torch.zeros_like(log_prob).scatter_(1, labels.unsqueeze(1), -lost.unsqueeze(1))
    result: Tensor = torch.ops.aten._log_softmax_backward_data(grad, log_prob, 1, log_prob.dtype)
    return result if ignored is None else cleared(result, ignored)


def cleared(grad: Tensor, ignored: Tensor) -> Tensor:
    """A gradient with zeros, in place, where a label is ignored, whatever the scores are there."""
    if grad.ndim > 2 or grad.is_cuda:
        return grad.masked_fill_(ignored.unsqueeze(1), 0.0)
    return rows.clear(grad, ignored)


def log_probabilities(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """The log softmax of scores in a type that is as wide as theirs or wider."""
    # a CPU takes several times as long to do both at once
    data = scores if scores.is_cuda else scores.to(dtype)
    return torch.log_softmax(data, 1, dtype=dtype)
