"""Rows for comparisons, truth values and finiteness."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, booleans, given, normal, only
from onnxtrain.testing.cases.math.elementwise import OLD_FLOATS
from onnxtrain.testing.cases.math.integers import huge, whole
from onnxtrain.types import BOOL, INTEGERS, INTS, MS, NUMBERS, DataType

_SHAPES = [
    ("same", (3, 4), (3, 4)),
    ("row", (2, 3, 4), (4,)),
    ("column", (3, 1), (1, 4)),
    ("scalar", (), (3,)),
    ("empty", (0, 3), (3,)),
]
_INF, _NAN = float("inf"), float("nan")


def _truth(op: str, inputs: list[Any], reference: Any = None, **options: Any) -> Case:
    return Case(op, inputs, reference, gradient=False, **options)


def _all(x: Tensor) -> Tensor:
    return x.all().reshape(1)


_LOGICAL = [
    _truth(op, [booleans(*a), booleans(*b)], reference, dtypes=BOOL, name=name)
    for op, reference in {
        "And": torch.logical_and,
        "Or": torch.logical_or,
        "Xor": torch.logical_xor,
    }.items()
    for name, a, b in _SHAPES
]
_LOGICAL += [
    _truth("Not", [booleans(3, 4)], torch.logical_not, dtypes=BOOL),
    _truth("Not", [booleans(3, 4)], torch.logical_not, dtypes=BOOL, opset=7),
    _truth("All", [booleans(50)], _all, domain=MS, dtypes=BOOL),
    _truth("All", [booleans(3, 4, true=1.1)], _all, domain=MS, dtypes=BOOL, name="true"),
    _truth("All", [booleans(0)], _all, domain=MS, dtypes=BOOL, name="empty"),
]

_COMPARISONS = {
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
}
_COMPARED = [
    row
    for op, reference in _COMPARISONS.items()
    for row in (
        *(
            _truth(op, [whole(*a, high=3), whole(*b, high=3)], dtypes=NUMBERS, name=name)
            for name, a, b in _SHAPES
        ),
        _truth(
            op,
            [given([_NAN, _INF, 1.0, -_INF, _NAN]), given([_NAN, _INF, _NAN, 1.0, 2.0])],
            reference,
            name="nan",
        ),
        _truth(
            op,
            [huge(2**63, 5, 2**64 - 1, 2**63), huge(5, 2**63, 2**64 - 2, 2**63)],
            dtypes=only(DataType.UINT64),
            name="huge",
        ),
    )
]
_COMPARED += [
    _truth("Equal", [booleans(3, 4), booleans(4)], torch.eq, dtypes=BOOL, name="bool"),
    _truth("Equal", [whole(3, high=2), whole(3, high=2)], dtypes=INTS, opset=7),
    _truth("Less", [normal(3), normal(3)], torch.lt, dtypes=OLD_FLOATS, opset=7),
    _truth("Greater", [whole(3, high=9), whole(3, high=9)], dtypes=INTEGERS, opset=9),
]

_FLOAT8 = only(
    DataType.FLOAT8E4M3FN,
    DataType.FLOAT8E4M3FNUZ,
    DataType.FLOAT8E5M2,
    DataType.FLOAT8E5M2FNUZ,
)
_ODD = given([_NAN, _INF, -_INF, 0.0, 1.5])


def _is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    return ((x == _INF) & bool(detect_positive)) | ((x == -_INF) & bool(detect_negative))


def _is_all_finite(*xs: Tensor, isinf_only: int = 0, isnan_only: int = 0) -> Tensor:
    flat = torch.cat([x.reshape(-1) for x in xs])
    bad = flat.isnan() if isnan_only else flat.isinf()
    return ~(bad if isinf_only or isnan_only else bad | flat.isnan()).any()


_FINITE = [
    _truth("IsNaN", [_ODD], torch.isnan),
    _truth("IsNaN", [_ODD], torch.isnan, opset=9, dtypes=OLD_FLOATS),
    _truth("IsNaN", [_ODD], torch.isnan, dtypes=_FLOAT8, name="float8"),
    _truth("IsInf", [_ODD], _is_inf),
    _truth("IsInf", [_ODD], _is_inf, dtypes=_FLOAT8, name="float8"),
    _truth("IsInf", [_ODD], _is_inf, attributes={"detect_negative": 0}),
    _truth("IsInf", [_ODD], _is_inf, attributes={"detect_positive": 0}),
    _truth("IsInf", [_ODD], _is_inf, attributes={"detect_positive": 0, "detect_negative": 0}),
    _truth("IsInf", [_ODD], _is_inf, opset=10, dtypes=only(DataType.FLOAT, DataType.DOUBLE)),
    _truth("IsFinite", [_ODD], torch.isfinite, domain=MS),
    *(
        _truth("IsAllFinite", inputs, _is_all_finite, domain=MS, attributes=attributes, name=name)
        for attributes in ({}, {"isinf_only": 1}, {"isnan_only": 1})
        for name, inputs in {
            f"finite{len(attributes)}": [normal(3, 4), normal(5), normal(0)],
            f"inf{len(attributes)}": [normal(3, 4), given([1.0, _INF])],
            f"nan{len(attributes)}": [given([1.0, _NAN]), normal(3, 4)],
        }.items()
    ),
]
CASES: list[Case] = [*_LOGICAL, *_COMPARED, *_FINITE]
