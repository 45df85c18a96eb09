"""Labels of rows: what they weigh, and losses of all rows added up in a fixed order."""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.early import Early, announce, wait
from onnxtrain.kernels.fast.common.launch import power


@triton.jit
def weights_at(to, at, there, WEIGHTED: tl.constexpr):
    """Weights of the labels' classes (1 by default), 0 for ignored ones."""
    labels, weights, classes, ignore = to
    label = tl.load(labels + at, there, ignore)
    if WEIGHTED:
        inside = (label >= 0) & (label < classes)
        weight = tl.load(weights + label, inside, 0.0).to(tl.float32)
    else:
        weight = tl.full(label.shape, 1.0, tl.float32)
    return tl.where(label == ignore, 0.0, weight)


@Early
@triton.jit
def _total_weight(
    out, labels, weights, rows, classes, ignore, WEIGHTED: tl.constexpr, B: tl.constexpr
):
    wait()
    announce()
    total = tl.zeros((B,), tl.float32)
    to = (labels, weights, classes, ignore)
    for first in range(0, rows, B):
        at = first + tl.arange(0, B)
        total += weights_at(to, at, at < rows, WEIGHTED)
    tl.store(out, tl.sum(total, 0))


@Early
@triton.jit
def _finish(loss, parts, rows, MEAN: tl.constexpr, B: tl.constexpr):
    """Add up losses (and weights, which follow them) in a fixed order."""
    wait()
    total = tl.zeros((B,), tl.float32)
    weight = tl.zeros((B,), tl.float32)
    for first in range(0, rows, B):
        at = first + tl.arange(0, B)
        total += tl.load(parts + at, at < rows, 0.0)
        if MEAN:
            weight += tl.load(parts + rows + at, at < rows, 0.0)
    result = tl.sum(total, 0)
    if MEAN:
        divisor = tl.sum(weight, 0)
        result = tl.where(divisor == 0.0, 0.0, result / divisor)
    tl.store(loss, result.to(loss.dtype.element_ty))


@dataclasses.dataclass(frozen=True)
class Labels:
    """Labels of rows, weights of classes, the ignored label, and how losses are reduced."""

    labels: Tensor
    weights: Tensor | None
    ignore: int
    reduction: str


def total_weight(to: Labels, rows: int, classes: int) -> Tensor:
    """Sum of the weights of all labels."""
    out = torch.empty((), dtype=torch.float32, device=to.labels.device)
    weights = out if to.weights is None else to.weights
    weighted = to.weights is not None
    _total_weight[(1,)](
        out, to.labels, weights, rows, classes, to.ignore, weighted, 4096, num_warps=16
    )
    return out


def reduced(parts: Tensor, to: Labels, dtype: torch.dtype) -> Tensor:
    """The loss of all rows, whose losses and weights a launch just leaves one after the other."""
    rows = parts.numel() // 2
    if to.reduction == "none":
        return parts[:rows].to(dtype)
    out = torch.empty((), dtype=dtype, device=parts.device)
    mean = to.reduction == "mean"
    _finish[(1,)](out, parts, rows, mean, min(4096, power(rows)), num_warps=8)
    return out
