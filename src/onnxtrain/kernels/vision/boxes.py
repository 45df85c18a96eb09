"""Boxes: which of many that overlap are kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single


@kernel(
    "NonMaxSuppression",
    since=10,
    host=["max_output_boxes_per_class", "iou_threshold", "score_threshold"],
)
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Any = 0,
    iou_threshold: Any = 0.0,
    score_threshold: Any = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """Rows (batch, class, box): the best boxes that overlap no better one too much."""
    most, limit = _number(max_output_boxes_per_class, 0), _number(iou_threshold, 0.0)
    least = _number(score_threshold, None)
    # which boxes remain depends on their values, so it is decided on the host
    rows = []
    for batch, (low, high, labels) in enumerate(
        zip(*_edges(boxes.cpu(), center_point_box), scores.cpu(), strict=True)
    ):
        for label, values in enumerate(labels):
            order = values.argsort(dim=-1, descending=True, stable=True)
            if least is not None:
                order = order[values[order] > least]
            rows += [(batch, label, box) for box in _best(order, low, high, limit, most)]
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).to(boxes.device)


def _number(value: Any, default: Any) -> Any:
    return default if value is None or value == [] else single(value)


def _edges(boxes: Tensor, center_point_box: int) -> tuple[Tensor, Tensor]:
    """The lower and the upper corner of each box."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if center_point_box:
        return first - second / 2, first + second / 2
    return torch.minimum(first, second), torch.maximum(first, second)


def _best(order: Tensor, low: Tensor, high: Tensor, limit: float, most: int) -> list[int]:
    """Boxes from the best one on, each followed by the best that overlaps none before it."""
    kept: list[int] = []
    while len(order) and len(kept) < most:
        box = order[0]
        kept.append(int(box))
        rest = order[1:]
        order = rest[~(_overlaps(box, rest, low, high) > limit)]
    return kept


def _overlaps(box: Tensor, others: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Shared area over joint area of a box and each other one."""
    sides = torch.minimum(high[box], high[others]) - torch.maximum(low[box], low[others])
    shared = sides.clamp(min=0).prod(-1)
    joint = (high[box] - low[box]).prod(-1) + (high[others] - low[others]).prod(-1) - shared
    return torch.where(shared > 0, shared / joint, 0.0)
