"""A linear layer and the cross entropy of its scores, which never exist all at once.

Rows are taken in chunks: their scores are computed, overwritten by their gradient, and used up by
the two products that lead back. Only a few hundred megabytes of scores are ever in memory.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from onnxtrain.kernels.loss import labels as over_labels
from onnxtrain.kernels.loss.with_grad import cross_entropy_with_grad
from onnxtrain.kernels.precision import acc

CHUNK_BYTES = 1 << 29
_FLOAT = 1
"""ONNX's number for float32."""


@dataclasses.dataclass
class LinearLoss:
    """The loss, and its gradients in the rows, the weight and the bias."""

    loss: Tensor
    dx: Tensor
    dweight: Tensor
    dbias: Tensor | None


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    dy: Tensor,
    bias: Tensor | None = None,
    class_weights: Tensor | None = None,
    *,
    ignore_index: int = -1,
    reduction: str = "mean",
    chunk_bytes: int = CHUNK_BYTES,
) -> LinearLoss:
    """Cross entropy of x @ weight.T + bias, as a mean or a sum, with all gradients for dy."""
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is '{reduction}', allowed are 'mean' and 'sum'")
    work, device = acc(x.dtype), x.device
    share = dy.to(work).reshape(())
    total = torch.ones((), dtype=work, device=device)
    if reduction == "mean":
        found, ignored = over_labels.usable(labels, len(weight), ignore_index)
        total = over_labels.sample_weights(found, ignored, class_weights, work).sum()
        share = over_labels.over(share, total)
    loss = torch.zeros((), dtype=work, device=device)
    dx, dweight = torch.empty_like(x), torch.zeros(weight.shape, dtype=work, device=device)
    dbias = None if bias is None else torch.zeros(bias.shape, dtype=work, device=device)
    rows = max(1, chunk_bytes // (len(weight) * x.dtype.itemsize))
    for first in range(0, len(x), rows):
        part = x[first : first + rows]
        scores = part @ weight.T if bias is None else torch.addmm(bias, part, weight.T)
        grad, added = cross_entropy_with_grad(
            scores,
            labels[first : first + rows],
            share,
            class_weights,
            ignore_index=ignore_index,
            output_type=_FLOAT if work is torch.float32 else None,
            reduction="sum",
            out=scores,
        )
        loss += added
        torch.mm(grad, weight, out=dx[first : first + rows])
        dweight += grad.T @ part
        if dbias is not None:
            dbias += grad.sum(0, dtype=work)
    loss = over_labels.over(loss, total)
    narrow = None if dbias is None or bias is None else dbias.to(bias.dtype)
    return LinearLoss(loss, dx, dweight.to(weight.dtype), narrow)
