"""Cross entropy of a projection, with all gradients: scores exist for some rows at a time.

A language model's scores are the largest tensor of its step. Here they are computed, turned into
their gradient in place and multiplied on while the next rows wait.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.loss import labels as over_labels
from onnxtrain.kernels.precision import acc, multiply
from onnxtrain.kernels.products import of_rows
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, INTS, OWN

MOST = 1 << 29
"""Scores that exist at a time."""
ALIGNED = 8
"""Products of 16-bit elements are several times faster if their sizes are multiples of this."""

Grads = tuple[Tensor, Tensor, Tensor, Tensor | None]


@kernel("LinearCrossEntropyWithGrad", domain=OWN, outputs=4, T=FLOATS, Tind=INTS)
def linear_cross_entropy_with_grad(
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    dy: Tensor,
    bias: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    ignore_index: int = -1,
    output_type: int | None = None,
    reduction: str = "mean",
) -> Grads:
    """The loss of scores = x·wᵀ + bias, and its gradients for dy: dx, dw and d bias."""
    rows = x.reshape(-1, x.shape[-1])
    _check(rows, w, labels, reduction)
    dtype = x.dtype if output_type is None else to_torch(output_type)
    product = Projection(rows, w, bias, labels.reshape(-1), weights, ignore_index)
    found, ignored = over_labels.usable(product.labels, w.shape[0], ignore_index)
    each_weight = over_labels.sample_weights(found, ignored, weights, acc(x.dtype))
    norm = each_weight.sum() if reduction == "mean" else torch.ones_like(each_weight[0])
    dy = over_labels.over(dy.to(norm.dtype).reshape(()), norm)
    if product.is_quick:
        each, dx, dw, db = product.in_parts(dy)
    else:
        each, dx, dw, db = product.at_once(dy, found, ignored, each_weight)
    return over_labels.over(each.sum(), norm).to(dtype), dx.reshape(x.shape), dw, db


def _check(rows: Tensor, w: Tensor, labels: Tensor, reduction: str) -> None:
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is '{reduction}', must be mean or sum")
    if w.ndim != 2 or w.shape[1] != rows.shape[1]:
        raise ValueError(f"w has shape {tuple(w.shape)}, rows of x have {rows.shape[1]} elements")
    if labels.numel() != len(rows) or not len(rows):
        raise ValueError(f"there are {labels.numel()} labels for {len(rows)} rows of scores")


@dataclasses.dataclass(frozen=True)
class Projection:
    """Rows that are projected to scores, with a label each."""

    rows: Tensor
    w: Tensor
    bias: Tensor | None
    labels: Tensor
    weights: Tensor | None
    ignore: int

    @property
    def is_quick(self) -> bool:
        """Whether the loss is a Triton kernel's, which overwrites the scores."""
        scores = len(self.rows) * self.w.shape[0]
        dense = all(t is None or t.is_contiguous() for t in (self.labels, self.weights))
        w = self.w.mT if self.turned else self.w
        return dense and scores >= fast.SMALLEST and fast.ready(self.rows, w, smallest=0)

    @property
    def turned(self) -> bool:
        """Whether w lies in memory as its transpose, which a layer without transB has."""
        return not self.w.is_contiguous() and self.w.mT.is_contiguous()

    def at_once(
        self, dy: Tensor, labels: Tensor, ignored: Tensor | None, each_weight: Tensor
    ) -> Grads:
        """The loss of each row, dx, dw and d bias, in operations that torch records."""
        scores = multiply(of_rows, self.rows, self.w.mT)
        scores = scores if self.bias is None else scores + self.bias
        log_prob = over_labels.log_probabilities(scores, acc(scores.dtype))
        each = over_labels.losses(log_prob, labels, ignored, each_weight)
        d = over_labels.spread(log_prob, labels, ignored, dy * each_weight).to(scores.dtype)
        dx, dw = multiply(of_rows, d, self.w), multiply(of_rows, d.mT, self.rows)
        return each, dx, dw, None if self.bias is None else d.sum(0)

    def in_parts(self, dy: Tensor) -> Grads:
        """The same, scores of some rows after those of others, in place and in aligned storage."""
        classes = self.w.shape[0]
        wide = classes if self.w.dtype.itemsize > 2 else -classes % ALIGNED + classes
        # rows of zeros give scores of zero, which the loss does not see and leaves alone
        w = torch.nn.functional.pad(self.w, (0, 0, 0, wide - classes))
        bias = None
        if self.bias is not None:
            bias = torch.nn.functional.pad(self.bias, (0, wide - classes))
        quick = fast.load("cross_entropy")
        dys = dy.float().expand(len(self.rows)).contiguous()
        each, dx = [], torch.empty_like(self.rows)
        d_w = d_bias = None
        parts = max(1, -(-len(self.rows) * wide // MOST))
        length = -(-len(self.rows) // parts)
        for first in range(0, len(self.rows), length):
            here = slice(first, first + length)
            x = self.rows[here]
            scores = x @ w.mT if bias is None else torch.addmm(bias, x, w.mT)
            seen = scores[:, :classes]
            to = quick.Labels(self.labels[here], self.weights, self.ignore, "none")
            each.append(quick.loss_and_grad(seen, to, dys[here], torch.float32, seen)[1])
            torch.mm(scores, w, out=dx[here])
            pair = (x.mT, scores) if self.turned else (scores.mT, x)
            d_w = _added(d_w, *pair, parts)
            if bias is not None:
                total = scores.sum(0, dtype=acc(scores.dtype))
                d_bias = total if d_bias is None else d_bias + total
        assert d_w is not None
        d_w = d_w[:, :classes].contiguous().mT if self.turned else d_w[:classes]
        d_bias = None if d_bias is None else d_bias[:classes].to(self.w.dtype)
        return torch.cat(each), dx, d_w.to(self.w.dtype), d_bias


def _added(total: Tensor | None, a: Tensor, b: Tensor, parts: int) -> Tensor:
    """total + a·b; sums of several products are kept in float32."""
    if parts == 1 or a.dtype.itemsize >= 4:
        product = a @ b
    else:
        product = torch.mm(a, b, out_dtype=torch.float32)
    return product if total is None else total.add_(product)
