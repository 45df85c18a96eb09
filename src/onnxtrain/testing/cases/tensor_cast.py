"""Rows for changes of the element type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.testing.case import Case, derived, given, normal, only, uniform
from onnxtrain.testing.cases.tensor_inputs import FLOAT, OLD_FLOATS, halves
from onnxtrain.types import BOOL, FIXED, FLOATS, INTEGERS, DataType

_FLOAT8 = [
    DataType.FLOAT8E4M3FN,
    DataType.FLOAT8E4M3FNUZ,
    DataType.FLOAT8E5M2,
    DataType.FLOAT8E5M2FNUZ,
]
_EXTREMES = [0.0, -0.0, 1.1, 239.0, 250.0, 447.0, 464.0, 465.0, 57000.0, 61441.0, 1e30, -1e30]
_SPECIALS = given([*_EXTREMES, torch.inf, -torch.inf, torch.nan])

_PATTERNS = derived(lambda g: torch.tensor([[0, 1, -2], [0x3F80_0000, 0x4049_0FDB_1234, 0x3C01]]))


def _cast(x: Tensor, *, to: int, **_: Any) -> Tensor:
    return x.to(to_torch(to))


def _cast_like(x: Tensor, target: Tensor) -> Tensor:
    return x.to(target.dtype)


def _reread(x: Tensor, *, to: int) -> Tensor:
    return torch.frombuffer(bytearray(x.numpy().tobytes()), dtype=to_torch(to)).reshape(x.shape)


_CAST = [
    *(
        Case(
            "Cast",
            [uniform(2, 3, low=0, high=100)],
            _cast,
            {"to": to},
            dtypes=FIXED,
            # Differences of values that are rounded to fewer digits say nothing.
            gradient=to == DataType.DOUBLE,
        )
        for to in sorted(FLOATS)
    ),
    *(
        Case("Cast", [uniform(8, low=0, high=100)], _cast, {"to": to}, dtypes=FIXED, gradient=False)
        for to in sorted(INTEGERS)
    ),
    Case("Cast", [halves(20)], _cast, {"to": DataType.BOOL}, dtypes=FIXED, gradient=False),
    Case("Cast", [normal()], _cast, {"to": DataType.DOUBLE}, name="scalar"),
    Case("Cast", [normal(0, 2)], _cast, {"to": DataType.FLOAT16}, name="empty"),
    Case("Cast", [normal(3)], _cast, {"to": DataType.DOUBLE}, opset=7, dtypes=OLD_FLOATS),
    *(
        Case(
            "Cast",
            [given([-129, -1, 0, 127, 128, 300, -40000], DataType.INT32)],
            _cast,
            {"to": to},
            name=f"wrap-to-{to.name}",
            gradient=False,
        )
        for to in (DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16)
    ),
]
_TO_FLOAT8 = [
    Case(
        "Cast",
        [_SPECIALS],
        attributes={"to": to, "saturate": saturate},
        name=f"{to.name}-saturate={saturate}",
        dtypes=only(DataType.FLOAT, DataType.FLOAT16),
        gradient=False,
    )
    for to in _FLOAT8
    for saturate in (0, 1)
]
_LIKE = [
    Case("CastLike", [normal(2, 3), given([1], DataType.DOUBLE)], _cast_like),
    Case(
        "CastLike",
        [normal(2, 3), given([1], DataType.FLOAT16)],
        _cast_like,
        name="fewer-digits",
        gradient=False,
    ),
    Case("CastLike", [halves(2, 3), given([1])], _cast_like, dtypes=FIXED, gradient=False),
    Case("CastLike", [halves(9), given(True)], _cast_like, dtypes=INTEGERS | BOOL, gradient=False),
    Case("CastLike", [normal(3), given(1)], _cast_like, opset=15, dtypes=FLOAT, gradient=False),
]
_BITS = [
    Case("BitCast", [_PATTERNS], _reread, {"to": to}, dtypes=only(dtype), gradient=False)
    for dtype, to in (
        (DataType.INT32, DataType.FLOAT),
        (DataType.INT32, DataType.UINT32),
        (DataType.INT64, DataType.DOUBLE),
        (DataType.INT64, DataType.UINT64),
        (DataType.INT16, DataType.FLOAT16),
        (DataType.UINT16, DataType.BFLOAT16),
        (DataType.INT8, DataType.UINT8),
    )
]

CASES: list[Case] = [*_CAST, *_TO_FLOAT8, *_LIKE, *_BITS]
