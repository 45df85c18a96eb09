"""Cross entropy of rows of scores: the loss with log probabilities or with the gradient.

Rows are cut into parts whose programs exchange maximum and sum, so scores are read once, whatever
their type and however many classes there are. A label that is no class reads nothing and makes its
row's results not a number, since the host does not see it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.launch import meet, meeting, part_of, power, turn

PART = 4096
PART_WARPS = 4
MOST_PARTS = 128


@triton.jit
def _rows(
    out,
    picked,
    scores,
    labels,
    share,
    counters,
    partial,
    classes,
    GRADIENT: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
):
    number = turn(counters)
    row, part = number // PARTS, number % PARTS
    column = part * C + tl.arange(0, C)
    mask = column < classes
    start = row.to(tl.int64) * classes
    held = tl.load(scores + start + column, mask, float("-inf"))
    label = tl.load(labels + row)
    inside = (label >= 0) & (label < classes)
    own = tl.load(scores + start + label, inside, float("nan")).to(tl.float32)
    top = tl.max(held, 0).to(tl.float32)
    # a part may hold nothing but masked scores
    own_top = tl.where(top == float("-inf"), 0.0, top)
    raised = tl.exp(held.to(tl.float32) - own_top)
    total = tl.sum(raised, 0)
    if PARTS > 1:
        tl.atomic_xchg(partial + (row * PARTS + part) * 2, top)
        tl.atomic_xchg(partial + (row * PARTS + part) * 2 + 1, total)
        meet(counters, row, PARTS)
        place = tl.arange(0, P)
        there = place < PARTS
        at = partial + (row * PARTS + place) * 2
        tops = tl.load(at, there, float("-inf"), volatile=True)
        totals = tl.load(at + 1, there, 0.0, volatile=True)
        top = tl.max(tops, 0)
        total = tl.sum(totals * tl.exp(tops - top), 0)
    log_total = top + tl.log(total)
    if GRADIENT:
        scale = tl.where(inside, tl.load(share + row), float("nan"))
        result = raised * (tl.exp(own_top - top) / total * scale)
        result = tl.where(column == label, result - scale, result)
        result = tl.where(scale == 0.0, 0.0, result)
    else:
        result = held.to(tl.float32) - log_total
    tl.store(out + start + column, result.to(out.dtype.element_ty), mask)
    if part == 0:
        tl.store(picked + row, own - log_total)


@triton.jit
def _grad(out, log_prob, labels, share, classes, C: tl.constexpr):
    row = tl.program_id(1)
    column = tl.program_id(0) * C + tl.arange(0, C)
    mask = column < classes
    at = row.to(tl.int64) * classes + column
    label = tl.load(labels + row)
    inside = (label >= 0) & (label < classes)
    scale = tl.where(inside, tl.load(share + row), float("nan"))
    probability = tl.exp(tl.load(log_prob + at, mask, 0.0).to(tl.float32))
    result = (probability - tl.where(column == label, 1.0, 0.0)) * scale
    result = tl.where(scale == 0.0, 0.0, result)
    tl.store(out + at, result.to(out.dtype.element_ty), mask)


def takes(scores: Tensor) -> bool:
    """Whether the scores are a matrix with rows that these kernels serve."""
    return scores.ndim == 2 and scores.shape[1] <= PART * MOST_PARTS


def log_probabilities(scores: Tensor, labels: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """log_softmax(scores), and its entry at each label in float32."""
    out = torch.empty_like(scores, dtype=dtype)
    return out, _over_rows(out, scores, labels, None)


def loss_and_grad(
    scores: Tensor, labels: Tensor, share: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(softmax(scores) - [c == label]) * share, and each label's log probability in float32."""
    out = torch.empty_like(scores) if out is None else out
    return out, _over_rows(out, scores, labels, share)


def _over_rows(out: Tensor, scores: Tensor, labels: Tensor, share: Tensor | None) -> Tensor:
    rows, classes = scores.shape
    width = part_of(classes, PART)
    parts = triton.cdiv(classes, width)
    counters, partial = meeting(rows, 2 * parts, scores.device)
    picked = torch.empty(rows, dtype=torch.float32, device=scores.device)
    _rows[(rows * parts,)](
        out,
        picked,
        scores,
        labels,
        picked if share is None else share,
        counters,
        partial,
        classes,
        share is not None,
        parts,
        power(parts),
        width,
        num_warps=PART_WARPS if width == PART else 4,
    )
    return picked


def grad(log_prob: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    """(e^log_prob - [c == label]) * share in the type of the log probabilities."""
    rows, classes = log_prob.shape
    out = torch.empty_like(log_prob)
    width = min(4096, power(classes))
    _grad[(triton.cdiv(classes, width), rows)](
        out, log_prob, labels, share, classes, width, num_warps=4
    )
    return out
