"""Rows for random tensors: only shapes and types are compared, values have tests of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.testing.case import Case, given, normal, uniform
from onnxtrain.testing.cases.tensor_inputs import FLOAT, OLD_FLOATS
from onnxtrain.types import BOOL, FLOATS, NUMBERS, DataType


def _of_shape(*, shape: list[int], dtype: int = DataType.FLOAT, **_: Any) -> Tensor:
    return torch.zeros(shape, dtype=to_torch(dtype))


def _like(x: Tensor, *, dtype: int | None = None, **_: Any) -> Tensor:
    return torch.zeros(x.shape, dtype=x.dtype if dtype is None else to_torch(dtype))


_FROM_NOTHING = [
    Case(
        op,
        [],
        _of_shape,
        {"shape": [2, 3], "dtype": dtype, "seed": 3.0},
        dtypes=FLOAT,
        gradient=False,
        compare=[],
    )
    for op in ("RandomNormal", "RandomUniform")
    for dtype in sorted(FLOATS)
]
_LIKE = [
    case
    for op in ("RandomNormalLike", "RandomUniformLike")
    for case in (
        Case(op, [normal(2, 3)], _like, gradient=False, compare=[]),
        Case(op, [normal(0, 3)], _like, name="empty", gradient=False, compare=[]),
        Case(op, [given([1, 2])], _like, {"dtype": 1}, dtypes=FLOAT, gradient=False, compare=[]),
        Case(op, [normal(3)], _like, opset=7, dtypes=OLD_FLOATS, gradient=False, compare=[]),
    )
]
_DRAWN = [
    Case("Bernoulli", [uniform(3, 4)], _like, gradient=False, compare=[]),
    *(
        Case("Bernoulli", [uniform(5)], _like, {"dtype": to}, gradient=False, compare=[])
        for to in sorted(NUMBERS | BOOL)
    ),
    Case("Bernoulli", [given([0.0, 1.0])], lambda p: p.clone(), name="certain", gradient=False),
    Case(
        "Multinomial",
        [given([[-torch.inf, 0.0, -torch.inf], [2.0, -torch.inf, -torch.inf]])],
        lambda x, *, sample_size: torch.tensor([[1] * sample_size, [0] * sample_size]),
        {"sample_size": 4},
        name="certain",
        gradient=False,
    ),
    Case(
        "Multinomial",
        [normal(2, 3)],
        lambda x, **_: torch.zeros(2, 5, dtype=torch.int64),
        {"sample_size": 5, "dtype": DataType.INT64},
        gradient=False,
        compare=[],
    ),
]

CASES: list[Case] = [*_FROM_NOTHING, *_LIKE, *_DRAWN]
