"""Rows for tensors made from numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.testing.case import Case, given, integers, normal, only, shape_input
from onnxtrain.testing.cases.tensor_inputs import FLOAT, OLD_FLOATS, halves
from onnxtrain.types import FIXED, INTEGERS, MS, DataType

_DEPTH = given(4, constant=True)


def _constant(**attributes: Any) -> Tensor:
    (value,) = attributes.values()
    return torch.as_tensor(value)


def _filled(shape: Tensor, *, value: Tensor | None = None) -> Tensor:
    value = torch.zeros(1) if value is None else value
    return torch.full(shape.tolist(), value.item(), dtype=value.dtype)


def _eye(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    made = np.eye(x.shape[0], x.shape[1], k=k)
    return torch.from_numpy(made).to(x.dtype if dtype is None else to_torch(dtype))


def _range(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    return torch.from_numpy(np.arange(start.item(), limit.item(), delta.item())).to(start.dtype)


def _one_hot(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    count = int(depth)
    hits = torch.stack([(indices == i) | (indices == i - count) for i in range(count)], axis)
    return values[hits.to(torch.int64)]


def _one_hot_9(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    return _one_hot(torch.where(indices < 0, depth, indices), depth, values, axis=axis)


def _trilu(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    row = torch.arange(x.shape[-2])[:, None] + (0 if k is None else int(k))
    column = torch.arange(x.shape[-1])
    keep = column >= row if upper else column <= row
    return x * keep.to(x.dtype)


def _number(value: float) -> Any:
    """A host scalar of the type under test."""
    return given(float(value), constant=True)


_CONSTANT = [
    Case("Constant", [], _constant, {name: value}, dtypes=FLOAT, gradient=False)
    for name, value in {
        "value": torch.tensor([[1.5, 2.0]], dtype=torch.float64),
        "value_int": 3,
        "value_ints": [1, -2, 3],
        "value_float": 0.5,
        "value_floats": [0.25, -1.0],
    }.items()
]
_OF_SHAPE = [
    Case("ConstantOfShape", [shape_input(2, 3)], _filled, gradient=False),
    Case("ConstantOfShape", [shape_input()], _filled, name="scalar", gradient=False),
    Case("ConstantOfShape", [given([2, 0, 3])], _filled, name="fed-shape", gradient=False),
] + [
    Case(
        "ConstantOfShape",
        [shape_input(2, 3)],
        _filled,
        {"value": torch.tensor([3]).to(to_torch(dtype))},
        name=dtype.name,
        opset=21,
        gradient=False,
    )
    for dtype in sorted(FIXED)
]
_EYE = [
    Case("EyeLike", [halves(3, 4)], _eye, dtypes=FIXED, gradient=False),
    *(Case("EyeLike", [normal(3, 4)], _eye, {"k": k}, gradient=False) for k in (1, -2, 4, -3)),
    Case("EyeLike", [normal(2, 2)], _eye, {"dtype": DataType.INT64}, gradient=False),
    Case("EyeLike", [normal(2, 2)], _eye, opset=9, dtypes=OLD_FLOATS, gradient=False),
]
_RANGE_TYPES = only(DataType.FLOAT, DataType.DOUBLE, DataType.INT16, DataType.INT32, DataType.INT64)
_RANGE = [
    Case(
        "Range",
        [_number(a), _number(b), _number(c)],
        _range,
        name=f"{a},{b},{c}",
        opset=11,
        dtypes=_RANGE_TYPES,
        gradient=False,
    )
    for a, b, c in ((3, 10, 3), (10, 4, -2), (5, 5, 1), (5, 2, 1), (-2, 3, 1))
] + [
    Case(
        "Range", [given(v).no_grad() for v in (1.0, 6.5, 0.5)], _range, name="fed", gradient=False
    ),
    Case("Range", [given(v) for v in (0.3, 2.05, 0.5)], _range, name="between", gradient=False),
    Case(
        "Range",
        [_number(0), _number(300), _number(1)],
        _range,
        name="long",
        dtypes=only(DataType.FLOAT16, DataType.BFLOAT16),
        gradient=False,
    ),
]
_ONE_HOT = (
    [
        Case(
            "OneHot",
            [integers(2, 3, low=-4, high=4), _DEPTH, halves(2).no_grad()],
            _one_hot,
            {"axis": axis},
            dtypes=FIXED if axis == 0 else FLOAT,
            gradient=False,
        )
        for axis in (-1, 0, 1, -2)
    ]
    + [
        Case(
            "OneHot",
            [given([0, 4, -5, 3]), _DEPTH, given([0.0, 1.0])],
            _one_hot,
            name="out-of-range",
            gradient=False,
        ),
        Case(
            "OneHot",
            [given(2), given([4], constant=True), given([1.0, 2.0])],
            _one_hot,
            name="scalar",
            gradient=False,
        ),
        *(
            Case("OneHot", [given(2), _DEPTH, normal(2)], _one_hot, {"axis": axis}, name=name)
            for axis, name in ((0, "scalar-first"), (-1, "scalar-last"))
        ),
        Case(
            "OneHot",
            [given([1.0, 3.0], DataType.FLOAT), _DEPTH, given([0.0, 1.0])],
            _one_hot,
            name="real-indices",
            gradient=False,
        ),
        Case(
            "OneHot",
            [given([1, -1, 3]), _DEPTH, given([0.0, 1.0])],
            _one_hot_9,
            opset=9,
            dtypes=OLD_FLOATS,
            gradient=False,
        ),
    ]
    + [
        Case(
            "OneHot",
            [given([1, 0, 3], dtype), _DEPTH, given([0.0, 1.0])],
            _one_hot,
            name=f"indices-{dtype.name}",
            dtypes=FLOAT,
            gradient=False,
        )
        for dtype in sorted(INTEGERS)
    ]
)
_TRILU = [
    Case("Trilu", [halves(3, 4)], _trilu, dtypes=FIXED),
    Case("Trilu", [halves(3, 4)], _trilu, {"upper": 0}, dtypes=FIXED),
    *(
        Case(
            "Trilu",
            [normal(2, 3, 4), given(k, constant=True)],
            _trilu,
            {"upper": upper},
            name=f"k={k},upper={upper}",
        )
        for k in (1, -1, 5, -5)
        for upper in (0, 1)
    ),
    Case("Trilu", [normal(2, 0, 3)], _trilu, name="empty"),
    Case("Trilu", [normal(3, 3), given(1, constant=True)], _trilu, {"upper": 0}, domain=MS),
]

CASES: list[Case] = [*_CONSTANT, *_OF_SHAPE, *_EYE, *_RANGE, *_ONE_HOT, *_TRILU]
