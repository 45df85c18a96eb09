"""Cross entropy of rows of scores: the loss with log probabilities or with the gradient.

A row stays in the registers of its program between the pass for the logarithm of the sum and the
one for the results, so that memory is read once; a row that is too long for one program is cut into
parts, whose programs exchange their largest scores and sums. Rows are read in groups of 16 bytes
wherever they begin. A label that is no class reads nothing and makes its row's results not a
number, since the host does not see it.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.common.cluster import InClusters, largest, opened
from onnxtrain.kernels.fast.common.early import Early, wait
from onnxtrain.kernels.fast.common.exchange import board, turn
from onnxtrain.kernels.fast.common.held import (
    chunk,
    ends_of,
    of_all,
    raised,
    read,
    top_and_total,
    unshared,
)
from onnxtrain.kernels.fast.common.launch import cdiv, multiprocessors, power
from onnxtrain.kernels.fast.labels import Labels, reduced, total_weight, weights_at

LOG_PROB, GRADIENT, GRADIENT_OF_LOG_PROB = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
COUNTED_BY_EACH = 1024
"""Up to so many rows every program adds up all weights by itself."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """Warps of a program, groups that a thread holds at most, and its registers."""

    warps: int
    held: int
    registers: int


HELD = {2: Launch(8, 25, 128), 4: Launch(4, 25, 128)}
"""By the bytes of a score, for rows that are read before their results are known."""
CLUSTERED_HELD = Launch(4, 16, 80)
"""For those of a cluster, which longer rows are: smaller programs are more evenly under way."""
ALONE = 19
"""Groups that a thread holds at most of one of many rows that are one program's, where there are
clusters."""
PASSED = {2: Launch(8, 2, 32), 4: Launch(8, 2, 32)}
"""For gradients from log probabilities, which need nothing of the rest of their row."""


@triton.jit
def _result(held, offset, scale, labelled, KIND: tl.constexpr, EXACT: tl.constexpr):
    """A log probability, or a gradient; of scores, as if the class were not the labelled one."""
    if KIND == LOG_PROB:
        result = (held - offset) - scale
    elif KIND == GRADIENT:
        result = raised(held, offset, EXACT) * scale
    else:
        result = raised(held, offset, EXACT) * scale - tl.where(labelled, scale, 0.0)
    return result


@triton.jit
def _write(
    out,
    held,
    extent,
    offset,
    scale,
    own,
    KIND: tl.constexpr,
    SHIFTED: tl.constexpr,
    EXACT: tl.constexpr,
    N: tl.constexpr,
    L: tl.constexpr,
    W: tl.constexpr,
):
    """Results of all chunks of this program."""
    for n in tl.static_range(N):
        place, there = chunk(extent, n, SHIFTED, L, W)
        value = unshared(held[n]).to(tl.float32)
        result = _result(value, offset, scale, place == own, KIND, EXACT)
        tl.store(out + place, result.to(out.dtype.element_ty), there)


@triton.jit
def _share_of(
    dy,
    norm,
    to,
    row,
    weight,
    rows,
    WEIGHTED: tl.constexpr,
    MEAN: tl.constexpr,
    EACH: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """What a row's gradient is multiplied by: dy * w_i / norm, 0 if the norm is 0."""
    share = tl.load(dy + (row if EACH else 0)).to(tl.float32) * weight
    if MEAN:
        if COUNTED > 0:
            at = tl.arange(0, COUNTED)
            divisor = tl.sum(weights_at(to, at, at < rows, WEIGHTED), 0)
        else:
            divisor = tl.load(norm)
        share = tl.where(divisor == 0.0, 0.0, share / divisor)
    return share


@triton.jit
def _clear(out, extent, L: tl.constexpr, N: tl.constexpr, W: tl.constexpr):
    """Zeros wherever this program's groups lie inside the row."""
    lead, classes, _, first = extent
    place = first * W + tl.arange(0, L * W)
    for _ in range(N):
        there = (place >= lead) & (place < lead + classes)
        tl.store(out + place, tl.zeros((L * W,), out.dtype.element_ty), there)
        place += L * W


@Early
@triton.jit
def _rows(
    out,
    parts,
    scores,
    labels,
    weights,
    dy,
    norm,
    words,
    rows,
    classes,
    stride,
    out_stride,
    ignore,
    KIND: tl.constexpr,
    WEIGHTED: tl.constexpr,
    MEAN: tl.constexpr,
    EACH: tl.constexpr,
    COUNTED: tl.constexpr,
    ALIKE: tl.constexpr,
    SHIFTED: tl.constexpr,
    EXACT: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    L: tl.constexpr,
    W: tl.constexpr,
    CLUSTERED: tl.constexpr,
):
    wait()
    number = tl.program_id(0)
    if PARTS > 1 and KIND != GRADIENT_OF_LOG_PROB and not CLUSTERED:
        number = turn(words).to(tl.int32)
    row, part = number // PARTS, number % PARTS
    start = row.to(tl.int64) * stride
    out_start = start if ALIKE else row.to(tl.int64) * out_stride
    base = start // W * W
    lead = (start - base).to(tl.int32)
    out_base = out + (base if ALIKE else out_start - lead)
    extent = (lead, classes, tl.cdiv(lead + classes, W), part * (N * L))
    label = tl.load(labels + row)
    if COUNTED > 0:  # scores are on their way while all weights are added up
        held = read(scores + base, extent, SHIFTED, N, L, W)
    to = (labels, weights, classes, ignore)
    weight = weights_at(to, row, True, WEIGHTED)
    inside = (label >= 0) & (label < classes)
    mine = tl.where(inside, (label + lead) // (N * L * W), 0) == part
    share = weight
    if KIND != LOG_PROB:
        share = _share_of(dy, norm, to, row, weight, rows, WEIGHTED, MEAN, EACH, COUNTED)
        share = tl.where(inside | (label == ignore), share, float("nan"))
    if (KIND != LOG_PROB) & (share == 0.0) & (weight == 0.0):
        # an ignored row has no loss, and its gradient needs no scores
        _clear(out_base, extent, L, N, W)
        if (KIND == GRADIENT) & (part == 0):
            tl.store(parts + row, 0.0)
            tl.store(parts + rows + row, weight)
    else:
        box = opened() if CLUSTERED else 0
        if COUNTED == 0:
            held = read(scores + base, extent, SHIFTED, N, L, W)
        own = tl.where(inside, label + lead, -1).to(tl.int32)
        ends = None
        if SHIFTED:
            end, cut = ends_of(extent, N * L, W)
            ends = tl.load(scores + base + end, cut, float("-inf")).to(tl.float32)
        offset, scale = tl.full((), 0.0, tl.float32), share
        if KIND != GRADIENT_OF_LOG_PROB:
            score = tl.load(scores + start + label, inside & mine, float("nan")).to(tl.float32)
            top, total = top_and_total(held, ends, EXACT, N)
            if PARTS > 1:
                at = words, box, number, row
                top, total = of_all(top, total, *at, EXACT, PARTS, P, CLUSTERED)
            if mine:
                loss = (tl.log(total) - (score - top)) * weight
                # a label that is no class has weight 0 among given ones, and no score
                tl.store(parts + row, tl.where(label == ignore, 0.0, loss))
                tl.store(parts + rows + row, weight)
            offset, scale = top, tl.log(total) if KIND == LOG_PROB else share / total
        _write(out_base, held, extent, offset, scale, own, KIND, SHIFTED, EXACT, N, L, W)
        if SHIFTED:
            result = _result(ends, offset, scale, end == own, KIND, EXACT)
            tl.store(out_base + end, result.to(out.dtype.element_ty), cut)
        if KIND == GRADIENT:
            tl.debug_barrier()
            if inside & mine:
                labelled = _result(score, offset, scale, True, KIND, True) - share
                tl.store(out + out_start + label, labelled.to(out.dtype.element_ty))


_clusters = Early(InClusters(_rows.function))


class Plan(NamedTuple):
    """Lanes, groups that a lane holds, parts of a row, and the rest of a launch."""

    lanes: int
    held: int
    parts: int
    launch: Launch
    clustered: bool = False


def _plan(scores: Tensor, kind: tl.constexpr) -> Plan:
    """How rows are cut: not at all, or into parts of a cluster, or of programs that take turns."""
    of = scores.dtype.itemsize
    groups = cdiv(scores.shape[1], 16 // of) + _shifted(scores)
    if kind is GRADIENT_OF_LOG_PROB:
        return _cut(groups, PASSED[of])
    plan = _cut(groups, HELD[of])
    if plan.parts > 1 or (plan.held > ALONE and scores.shape[0] > COUNTED_BY_EACH):
        clustered = _cut(groups, CLUSTERED_HELD)
        parts = power(clustered.parts)
        if parts <= largest(scores.device):
            held = cdiv(cdiv(groups, clustered.lanes), parts)
            return clustered._replace(held=held, parts=parts, clustered=True)
    return plan


def _cut(groups: int, launch: Launch) -> Plan:
    lanes = min(launch.warps * 32, power(groups))
    steps = cdiv(groups, lanes)
    parts = 1 if interpreted() else cdiv(steps, launch.held)
    return Plan(lanes, cdiv(steps, parts), parts, launch)


def _shifted(scores: Tensor) -> bool:
    """Whether rows begin or end inside a group of 16 bytes."""
    width = 16 // scores.dtype.itemsize
    return scores.shape[1] % width != 0 or scores.stride(0) % width != 0


def takes(scores: Tensor, labels: Tensor, weights: Tensor | None) -> bool:
    """Whether the scores are a matrix of dense rows, and the rest lies as these kernels read it."""
    others = [labels] if weights is None else [labels, weights]
    return (
        scores.ndim == 2
        and scores.stride(1) == 1
        and scores.data_ptr() % 16 == 0
        and labels.dtype in (torch.int32, torch.int64)
        and all(t.is_contiguous() for t in others)
        and _plan(scores, GRADIENT).parts <= multiprocessors(scores.device) // 2
    )


def loss(scores: Tensor, to: Labels, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The loss, and log_softmax(scores), in the type that is asked for."""
    out = torch.empty_like(scores, dtype=dtype)
    return reduced(_over_rows(out, scores, to, None, LOG_PROB), to, dtype), out


def grad(dy: Tensor, log_prob: Tensor, to: Labels) -> Tensor:
    """dy * w_i / norm * (e^log_prob - [c == label]) in the type of the log probabilities."""
    out = torch.empty_like(log_prob)
    _over_rows(out, log_prob, to, dy, GRADIENT_OF_LOG_PROB)
    return out


def loss_and_grad(
    scores: Tensor, to: Labels, dy: Tensor, dtype: torch.dtype, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradient in the scores, which may overwrite them, and the loss."""
    out = torch.empty_like(scores) if out is None else out
    return out, reduced(_over_rows(out, scores, to, dy, GRADIENT), to, dtype)


def _over_rows(
    out: Tensor, scores: Tensor, to: Labels, dy: Tensor | None, kind: tl.constexpr
) -> Tensor:
    """Write the results of all rows; losses and weights are returned, one after the other."""
    rows, classes = scores.shape
    mean = dy is not None and to.reduction == "mean"
    width = 16 // scores.dtype.itemsize
    lanes, held, pieces, plan, clustered = _plan(scores, kind)
    counted = rows <= COUNTED_BY_EACH and pieces == 1
    parts = torch.empty(2 * rows, dtype=torch.float32, device=scores.device)
    words = parts
    if pieces > 1 and kind is not GRADIENT_OF_LOG_PROB and not clustered:
        words = board(rows * pieces, scores.device)
    launch = _clusters[(rows,)] if clustered else _rows[(rows * pieces,)]
    given = parts if dy is None else dy.contiguous()  # it may be one number for all rows
    norm = total_weight(to, rows, classes) if mean and not counted else parts
    launch(
        out,
        parts,
        scores,
        to.labels,
        scores if to.weights is None else to.weights,
        given,
        norm,
        words,
        rows,
        classes,
        scores.stride(0),
        out.stride(0),
        to.ignore,
        kind.value,
        to.weights is not None,
        mean,
        to.reduction == "none",
        power(rows) if mean and counted else 0,
        out.stride(0) == scores.stride(0),
        _shifted(scores),
        scores.dtype is torch.float32,
        pieces,
        power(pieces),
        held,
        lanes,
        width,
        clustered,
        num_warps=max(1, lanes // 32),
        maxnreg=plan.registers,
    )
    return parts
