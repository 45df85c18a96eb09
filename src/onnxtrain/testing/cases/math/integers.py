"""Rows for mathematics of whole numbers, up to the ends of their ranges."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from onnxtrain.testing.case import Case, Input, given, integers, only, shape_input
from onnxtrain.types import INTEGERS, INTS, DataType

SIGNED = only(DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64)
UNSIGNED = INTEGERS - SIGNED
WIDE = only(DataType.INT32, DataType.INT64, DataType.UINT32, DataType.UINT64)
"""The whole numbers that sums and matrix products take."""


def whole(*shape: int, low: int = 0, high: int) -> Input:
    """Whole numbers in the type under test."""
    return dataclasses.replace(integers(*shape, low=low, high=high), dtype=None)


def fixed(value: int) -> Input:
    """A number in the type under test."""
    return Input(lambda g: torch.tensor(value), grad=False)


def huge(*values: int) -> Input:
    """Numbers that only uint64 holds."""
    tensor = torch.tensor(values, dtype=torch.uint64)
    return Input(lambda g: tensor.clone(), DataType.UINT64, grad=False)


def _row(op: str, inputs: list[Input | None], name: str, **options: Any) -> Case:
    """A row judged by ONNX's own reference implementation, which knows every whole number."""
    return Case(op, inputs, name=name, gradient=False, **options)


_HUGE = huge(2**64 - 1, 2**63, 2**63 + 5, 7, 2**64 - 2)
_OTHER = huge(3, 2**63 + 1, 2**63 - 1, 2**63 + 7, 2**64 - 1)
_UINT64 = only(DataType.UINT64)

_UNARY = [
    _row("Abs", [whole(3, 4, high=100)], "integers", dtypes=INTEGERS),
    _row("Abs", [whole(6, low=-9, high=9)], "signed", dtypes=SIGNED),
    _row("Neg", [whole(6, low=-9, high=9)], "signed", dtypes=SIGNED),
    _row("Sign", [whole(6, high=3)], "integers", dtypes=INTEGERS),
    _row("Sign", [whole(6, low=-9, high=9)], "signed", dtypes=SIGNED),
    _row("Sign", [_HUGE], "huge", dtypes=_UINT64),
    Case(
        "Erf",
        [whole(6, high=20)],
        lambda x: torch.erf(x.to(torch.float64)).trunc(),
        dtypes=INTEGERS,
        opset=9,
        name="integers",
        gradient=False,
    ),
]
_ARITHMETIC = [
    _row("Add", [whole(3, 4, high=9), whole(4, high=9)], "integers", dtypes=INTEGERS),
    _row("Mul", [whole(3, 4, high=9), whole(4, high=9)], "integers", dtypes=INTEGERS),
    _row("Sub", [whole(3, 4, low=9, high=20), whole(4, high=9)], "integers", dtypes=INTEGERS),
    _row("Div", [whole(3, 4, high=100), whole(4, low=1, high=9)], "integers", dtypes=INTEGERS),
    _row("Mod", [whole(3, 4, high=100), whole(4, low=1, high=9)], "integers", dtypes=INTEGERS),
    Case(
        "Div",
        [given([-7, 7, -7, 7], DataType.INT32), given([2, -2, -2, 2], DataType.INT32)],
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        dtypes=only(DataType.INT32),
        name="towards-zero",
        gradient=False,
    ),
    _row("Add", [whole(4, high=9), whole(4, high=9)], "v7", dtypes=WIDE, opset=7),
    *(_row(op, [_HUGE, _OTHER], "huge", dtypes=_UINT64) for op in ("Add", "Sub", "Mul", "Mod")),
    Case(
        "Div",
        [_HUGE, _OTHER],
        lambda a, b: torch.tensor([0x5555555555555555, 0, 1, 0, 0]),
        dtypes=_UINT64,
        name="huge",
        gradient=False,
    ),
    *(
        _row(
            "Mod",
            [given([-7, 7, -7, 7, 0, -8]), given([4, -4, -4, 4, -3, 4])],
            f"signs-fmod{fmod}",
            attributes={"fmod": fmod},
            dtypes=only(DataType.INT64),
        )
        for fmod in (0, 1)
    ),
    _row("Pow", [whole(3, 4, low=-3, high=4), whole(4, high=5)], "integers", dtypes=INTS),
    _row(
        "Pow",
        [whole(3, 4, high=9), given([0.5, 1.0, 2.0, 1.5], DataType.FLOAT)],
        "float-exponent",
        dtypes=INTS,
    ),
]
_ORDER = [
    row
    for op in ("Max", "Min")
    for row in (
        _row(op, [whole(3, 4, high=50), whole(4, high=50)], "integers", dtypes=INTEGERS),
        _row(op, [whole(4, high=50)], "one", dtypes=INTEGERS),
        _row(op, [_HUGE, _OTHER], "huge", dtypes=_UINT64),
    )
]
_ORDER += [
    _row("Clip", [whole(9, high=50), fixed(10), fixed(30)], "both", dtypes=INTEGERS),
    _row("Clip", [whole(9, high=50), fixed(10)], "low", dtypes=INTEGERS),
    _row("Clip", [whole(9, high=50), None, fixed(30)], "high", dtypes=INTEGERS),
    _row("Clip", [whole(9, high=50)], "none", dtypes=INTEGERS),
    _row("Clip", [_HUGE, huge(9), huge(2**63 + 1)], "huge", dtypes=_UINT64),
]


def _bits(op: str) -> list[Case]:
    return [
        _row(op, [whole(3, 4, high=100), whole(4, high=100)], "integers", dtypes=INTEGERS),
        _row(op, [whole(6, low=-99, high=99), whole(6, high=99)], "signed", dtypes=SIGNED),
        _row(op, [_HUGE, _OTHER], "huge", dtypes=_UINT64),
    ]


_BITS = [
    *_bits("BitwiseAnd"),
    *_bits("BitwiseOr"),
    *_bits("BitwiseXor"),
    _row("BitwiseNot", [whole(6, high=100)], "integers", dtypes=INTEGERS),
    _row("BitwiseNot", [_HUGE], "huge", dtypes=_UINT64),
    *(
        _row(
            "BitShift",
            [whole(3, 4, high=100), whole(4, high=8)],
            f"{direction}-v11",
            attributes={"direction": direction},
            opset=11,
            dtypes=UNSIGNED,
        )
        for direction in ("LEFT", "RIGHT")
    ),
    *(
        _row(
            "BitShift",
            [_HUGE, huge(1, 63, 5, 0, 2)],
            f"{direction}-huge",
            attributes={"direction": direction},
            dtypes=_UINT64,
        )
        for direction in ("LEFT", "RIGHT")
    ),
    Case(
        "BitShift",
        [
            given([-128, 127, 3, -1, -1, 5], DataType.INT8),
            given([1, 3, 7, 9, -1, 8], DataType.INT8),
        ],
        lambda x, y, direction: torch.tensor([-64, 15, 0, -1, -1, 0]),
        {"direction": "RIGHT"},
        dtypes=only(DataType.INT8),
        name="RIGHT-signed",
        gradient=False,
    ),
    Case(
        "BitShift",
        [
            given([-128, 127, 3, -1, -1, 5], DataType.INT8),
            given([1, 3, 7, 9, -1, 4], DataType.INT8),
        ],
        lambda x, y, direction: torch.tensor([0, -8, -128, 0, 0, 80]),
        {"direction": "LEFT"},
        dtypes=only(DataType.INT8),
        name="LEFT-signed",
        gradient=False,
    ),
]
_SCANS = [
    _row("CumSum", [whole(3, 4, high=9), given(1)], "integers", dtypes=WIDE),
    _row("CumSum", [_HUGE, given(0)], "huge", dtypes=_UINT64),
    _row("CumProd", [whole(3, 4, low=1, high=4), given(0)], "integers", dtypes=WIDE),
]
_SUMS = ("ReduceSum", "ReduceL1", "ReduceSumSquare", "ReduceProd", "ReduceMean", "ReduceL2")
_REDUCTIONS = [
    *(
        _row(op, [whole(3, 4, low=1, high=5), shape_input(1)], "integers", dtypes=WIDE)
        for op in (*_SUMS, "ReduceMax", "ReduceMin")
    ),
    *(
        _row(op, [whole(3, 4, high=100), shape_input(0)], "bytes", dtypes=dtypes)
        for op in ("ReduceMax", "ReduceMin")
        for dtypes in [only(DataType.INT8, DataType.UINT8)]
    ),
    *(
        _row(op, [_HUGE, shape_input(0)], "huge", dtypes=_UINT64)
        for op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1")
    ),
    *(
        _row(op, [whole(3, 4, high=50)], "integers", attributes={"axis": 1}, dtypes=INTEGERS)
        for op in ("ArgMax", "ArgMin")
    ),
    _row("ArgMax", [_HUGE], "huge", dtypes=_UINT64),
]
CASES: list[Case] = [*_UNARY, *_ARITHMETIC, *_ORDER, *_BITS, *_SCANS, *_REDUCTIONS]
