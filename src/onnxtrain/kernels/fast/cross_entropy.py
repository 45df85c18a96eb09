"""Cross entropy of rows of scores: the loss with log probabilities or with the gradient.

A program goes through its row twice, for the logarithm of the sum and for the results; few enough
rows are under way that the second pass finds its scores in the cache. Rows are read in groups of
16 bytes wherever they begin. A label that is no class reads nothing and makes its row's results
not a number, since the host does not see it.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.approx import LOG2_E
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.labels import Labels, reduced, total_weight, weights_at
from onnxtrain.kernels.fast.launch import cdiv, power

LOG_PROB, GRADIENT, GRADIENT_OF_LOG_PROB = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
COUNTED_BY_EACH = 1024
"""Up to so many rows every program adds up all weights by itself."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """Warps of a program, groups of a thread, steps of a row that are loaded ahead, registers.

    If ``hinted``, the cache is told that scores are read twice and results not at all.
    """

    warps: int
    groups: int
    stages: int
    registers: int
    hinted: bool


LAUNCHES = {2: Launch(32, 2, 1, 32, True), 4: Launch(32, 4, 1, 64, True)}
"""By the bytes of a score."""
HINTS = {True: ("evict_last", "evict_first"), False: ("", "")}
"""For scores when they are read first, and for those and the results afterwards."""


@triton.jit
def _raised(x, top, EXACT: tl.constexpr):
    """e^(x - top); 16-bit scores need no exact difference."""
    return tl.exp2((x - top) * LOG2_E) if EXACT else tl.exp2(x * LOG2_E - top * LOG2_E)


@triton.jit
def _whole(group, extent, W: tl.constexpr):
    """Groups that belong to one row as a whole."""
    lead, classes, _ = extent
    return (group * W >= lead) & (group * W + W <= lead + classes)


@triton.jit
def _ends(extent, W: tl.constexpr):
    """Places in the first and the last group, and which of them are not in a whole one."""
    lead, classes, groups = extent
    lane = tl.arange(0, 2 * W)
    place = tl.where(lane < W, lane, (groups - 2) * W + lane)
    begin = place // W * W
    cut = (begin < lead) | (begin + W > lead + classes)
    # one group may be both the first and the last
    there = (place >= lead) & (place < lead + classes) & (lane < tl.minimum(groups, 2) * W)
    return place, there & cut


@triton.jit
def _top_and_total(
    row,
    extent,
    SHIFTED: tl.constexpr,
    EXACT: tl.constexpr,
    KEPT: tl.constexpr,
    STAGES: tl.constexpr,
    L: tl.constexpr,
    W: tl.constexpr,
):
    """m = max x and Σ e^(x - m) over a row: each lane has its own two until the end."""
    tops = tl.full((L,), float("-inf"), tl.float32)
    sums = tl.zeros((L,), tl.float32)
    for first in tl.range(0, extent[2], L, num_stages=STAGES):
        group = first + tl.arange(0, L)
        there = _whole(group, extent, W) if SHIFTED else group < extent[2]
        place = group[:, None] * W + tl.arange(0, W)[None, :]
        held = tl.load(row + place, there[:, None], float("-inf"), eviction_policy=KEPT)
        held = held.to(tl.float32)
        higher = tl.maximum(tops, tl.max(held, 1))
        # a lane may have seen nothing but masked scores
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        raised = tl.sum(_raised(held, safe[:, None], EXACT), 1)
        sums = sums * _raised(tops, safe, EXACT) + raised
        tops = higher
    if SHIFTED:
        place, there = _ends(extent, W)
        held = tl.load(row + place, there, float("-inf")).to(tl.float32)
        top = tl.maximum(tl.max(tops, 0), tl.max(held, 0))
        total = tl.sum(sums * _raised(tops, top, EXACT), 0) + tl.sum(_raised(held, top, EXACT), 0)
    else:
        top = tl.max(tops, 0)
        total = tl.sum(sums * _raised(tops, top, EXACT), 0)
    return top, total


@triton.jit
def _result(held, offset, scale, KIND: tl.constexpr, EXACT: tl.constexpr):
    """A log probability, or the gradient of a class as if it were not the labelled one."""
    if KIND == LOG_PROB:
        result = (held - offset) - scale
    else:
        result = _raised(held, offset, EXACT) * scale
    return result


@triton.jit
def _write_row(
    out,
    row,
    extent,
    offset,
    scale,
    KIND: tl.constexpr,
    SHIFTED: tl.constexpr,
    EXACT: tl.constexpr,
    PASSED: tl.constexpr,
    STAGES: tl.constexpr,
    L: tl.constexpr,
    W: tl.constexpr,
):
    """Whole groups are stored at once; the two at the ends may belong to other rows in part."""
    for first in tl.range(0, extent[2], L, num_stages=STAGES):
        group = first + tl.arange(0, L)
        place = group[:, None] * W + tl.arange(0, W)[None, :]
        there = (_whole(group, extent, W) if SHIFTED else group < extent[2])[:, None]
        held = tl.load(row + place, there, 0.0, eviction_policy=PASSED).to(tl.float32)
        result = _result(held, offset, scale, KIND, EXACT).to(out.dtype.element_ty)
        tl.store(out + place, result, there, eviction_policy=PASSED)
    if SHIFTED:
        place, there = _ends(extent, W)
        held = tl.load(row + place, there, 0.0).to(tl.float32)
        result = _result(held, offset, scale, KIND, EXACT)
        tl.store(out + place, result.to(out.dtype.element_ty), there)


@triton.jit
def _clear_row(out, start, classes, L: tl.constexpr, W: tl.constexpr):
    for first in range(0, classes, L * W):
        column = first + tl.arange(0, L * W)
        tl.store(out + start + column, tl.zeros((L * W,), out.dtype.element_ty), column < classes)


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


@Compiled
@triton.jit
def _rows(
    out,
    parts,
    scores,
    labels,
    weights,
    dy,
    norm,
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
    KEPT: tl.constexpr,
    PASSED: tl.constexpr,
    STAGES: tl.constexpr,
    L: tl.constexpr,
    W: tl.constexpr,
):
    row = tl.program_id(0)
    start = row.to(tl.int64) * stride
    out_start = start if ALIKE else row.to(tl.int64) * out_stride
    base = start // W * W
    lead = (start - base).to(tl.int32)
    out_base = base if ALIKE else out_start - lead
    label = tl.load(labels + row)
    inside = (label >= 0) & (label < classes)
    own = tl.load(scores + start + label, inside, float("nan")).to(tl.float32)
    to = (labels, weights, classes, ignore)
    weight = weights_at(to, row, True, WEIGHTED)
    extent = (lead, classes, tl.cdiv(lead + classes, W))
    share = own
    if KIND != LOG_PROB:
        share = _share_of(dy, norm, to, row, weight, rows, WEIGHTED, MEAN, EACH, COUNTED)
        share = tl.where(inside | (label == ignore), share, float("nan"))
    top, total = own, own
    if KIND != GRADIENT_OF_LOG_PROB:
        # an ignored row has no loss, and its gradient needs no scores
        if (KIND == LOG_PROB) | (weight != 0.0):
            top, total = _top_and_total(scores + base, extent, SHIFTED, EXACT, KEPT, STAGES, L, W)
        _store_loss(parts, row, rows, own - top - tl.log(total), weight)
    if KIND == LOG_PROB:
        offset, scale = top, tl.log(total)
    elif KIND == GRADIENT:
        offset, scale = top, share / total
    else:
        offset, scale = tl.full((), 0.0, tl.float32), share
    if (KIND != LOG_PROB) & (share == 0.0):
        _clear_row(out, out_start, classes, L, W)
    else:
        _write_row(
            out + out_base,
            scores + base,
            extent,
            offset,
            scale,
            KIND,
            SHIFTED,
            EXACT,
            PASSED,
            STAGES,
            L,
            W,
        )
        if KIND != LOG_PROB:
            tl.debug_barrier()
            if inside:
                labelled = _result(own, offset, scale, KIND, True) - share
                tl.store(out + out_start + label, labelled.to(out.dtype.element_ty))


@triton.jit
def _store_loss(parts, row, rows, log_prob, weight):
    tl.store(parts + row, tl.where(weight == 0.0, 0.0, -log_prob * weight))
    tl.store(parts + rows + row, weight)


def takes(scores: Tensor, labels: Tensor, weights: Tensor | None) -> bool:
    """Whether the scores are a matrix of dense rows, and the rest lies as these kernels read it."""
    others = [labels] if weights is None else [labels, weights]
    return (
        scores.ndim == 2
        and scores.stride(1) == 1
        and scores.data_ptr() % 16 == 0
        and labels.dtype in (torch.int32, torch.int64)
        and all(t.is_contiguous() for t in others)
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
    small = rows <= COUNTED_BY_EACH
    plan, width = LAUNCHES[scores.dtype.itemsize], 16 // scores.dtype.itemsize
    lanes = min(plan.warps * 32 * plan.groups, power(cdiv(classes, width) + 1))
    parts = torch.empty(2 * rows, dtype=torch.float32, device=scores.device)
    _rows[(rows,)](
        out,
        parts,
        scores,
        to.labels,
        scores if to.weights is None else to.weights,
        parts if dy is None else dy,
        total_weight(to, rows, classes) if mean and not small else parts,
        rows,
        classes,
        scores.stride(0),
        out.stride(0),
        to.ignore,
        kind.value,
        to.weights is not None,
        mean,
        to.reduction == "none",
        power(rows) if mean and small else 0,
        out.stride(0) == scores.stride(0),
        classes % width != 0 or scores.stride(0) % width != 0,
        scores.dtype is torch.float32,
        *HINTS[plan.hinted and kind is not GRADIENT_OF_LOG_PROB],
        plan.stages,
        lanes,
        width,
        num_warps=max(1, min(plan.warps, lanes // 32)),
        maxnreg=plan.registers,
    )
    return parts
