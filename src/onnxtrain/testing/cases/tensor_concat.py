"""Rows for joining and splitting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxtrain.testing.case import Case, given, normal, shape_input
from onnxtrain.testing.cases.tensor_inputs import OLD_FLOATS, halves
from onnxtrain.types import FIXED, MS


def _concat(*inputs: Tensor, axis: int = 1) -> Tensor:
    moved = [x.movedim(axis, 0) for x in inputs]
    return torch.stack([part for x in moved for part in x.unbind()]).movedim(0, axis)


def _concat_training(*inputs: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    return _concat(*inputs, axis=axis), torch.tensor([x.shape[axis] for x in inputs])


def _parts(count: int) -> Any:
    """The reference of a split into ``count`` outputs."""

    def split(
        x: Tensor,
        sizes: Tensor | None = None,
        *,
        split: Sequence[int] | None = None,
        axis: int = 0,
        num_outputs: int | None = None,
    ) -> Any:
        wanted = list(split or []) if sizes is None else [int(n) for n in sizes]
        if not wanted:
            step = -(-x.shape[axis] // count)
            wanted = [min(step, x.shape[axis] - i * step) for i in range(count)]
        ends = np.cumsum(wanted).tolist()
        parts = [
            x.index_select(axis, torch.arange(end - n, end))
            for n, end in zip(wanted, ends, strict=True)
        ]
        return parts if count > 1 else parts[0]

    return split


_CONCAT = [
    Case("Concat", [halves(2, 3), halves(4, 3)], _concat, {"axis": 0}, dtypes=FIXED),
    Case("Concat", [normal(2, 3), normal(2, 1), normal(2, 2)], _concat, {"axis": -1}),
    Case("Concat", [normal(2, 3)], _concat, {"axis": 1}, name="one-input"),
    Case("Concat", [normal(2, 3), normal(2, 0)], _concat, {"axis": 1}, name="empty-input"),
    Case(
        "Concat",
        [normal(0, 3), normal(0, 2)],
        _concat,
        {"axis": 1},
        name="empty-result",
        gradient=False,
    ),
    Case("Concat", [normal(2, 3), normal(2, 3)], _concat, {"axis": 1}, opset=7, dtypes=OLD_FLOATS),
    Case(
        "Concat", [normal(2, 3), normal(2, 3)], _concat, opset=1, dtypes=OLD_FLOATS, gradient=False
    ),
    Case(
        "ConcatTraining",
        [halves(2, 2), halves(2, 1)],
        _concat_training,
        {"axis": -1},
        domain=MS,
        outputs=2,
        dtypes=FIXED,
    ),
    Case(
        "ConcatTraining",
        [normal(2, 2), normal(0, 2)],
        _concat_training,
        {"axis": 0},
        domain=MS,
        outputs=2,
        name="empty-input",
    ),
    Case(
        "ConcatTraining",
        [normal(0, 2), normal(0, 3)],
        _concat_training,
        {"axis": 1},
        domain=MS,
        outputs=2,
        name="empty-result",
        gradient=False,
    ),
    Case(
        "ConcatTraining",
        [normal(1, 2)] * 16,
        lambda *xs, axis: _concat(*xs, axis=axis),
        {"axis": 0},
        domain=MS,
        name="lengths-unused",
    ),
]
_SPLIT = [
    Case("Split", [halves(6, 2), shape_input(1, 2, 3)], _parts(3), outputs=3, dtypes=FIXED),
    Case("Split", [normal(2, 6), shape_input(4, 2)], _parts(2), {"axis": -1}, outputs=2),
    Case("Split", [normal(4, 2), shape_input(4, 0)], _parts(2), outputs=2, name="empty-part"),
    Case(
        "Split",
        [normal(6, 2), shape_input(1, 2, 3)],
        _parts(3),
        outputs=3,
        empty=[1],
        name="unused-part",
    ),
    Case("Split", [normal(7, 2)], _parts(3), {"num_outputs": 3}, outputs=3),
    Case("Split", [normal(2, 6)], _parts(3), {"num_outputs": 3, "axis": 1}, outputs=3),
    Case("Split", [normal(3, 2)], _parts(1), {"num_outputs": 1}),
    Case("Split", [normal(6, 2)], _parts(2), outputs=2, opset=13),
    Case("Split", [normal(6, 2), shape_input(2, 4)], _parts(2), outputs=2, opset=13),
    Case(
        "Split", [normal(6, 2)], _parts(2), {"split": [2, 4]}, outputs=2, opset=7, dtypes=OLD_FLOATS
    ),
    Case("Split", [normal(2, 6)], _parts(3), {"axis": 1}, outputs=3, opset=11, dtypes=OLD_FLOATS),
    Case(
        "Split",
        [normal(4, 2), given([1.0, 3.0], constant=True)],
        _parts(2),
        outputs=2,
        opset=1,
        dtypes=OLD_FLOATS,
        gradient=False,
    ),
]
_SPLIT_TRAINING = [
    Case(
        "SplitTraining",
        [halves(6, 2), shape_input(1, 2, 3)],
        _parts(3),
        domain=MS,
        outputs=3,
        dtypes=FIXED,
        gradient=False,
    ),
    Case(
        "SplitTraining",
        [normal(2, 6), shape_input()],
        _parts(3),
        {"axis": -1},
        domain=MS,
        outputs=3,
        name="equal",
        gradient=False,
    ),
    Case(
        "SplitTraining",
        [normal(3, 2), shape_input(0, 3)],
        _parts(2),
        domain=MS,
        outputs=2,
        name="empty-part",
        gradient=False,
    ),
]

CASES: list[Case] = [*_CONCAT, *_SPLIT, *_SPLIT_TRAINING]
