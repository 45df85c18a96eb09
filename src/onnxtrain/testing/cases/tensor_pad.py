"""Rows for padding and cropping."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxtrain.testing.case import Case, given, normal, shape_input
from onnxtrain.testing.cases.tensor_inputs import FLOAT, OLD_FLOATS, halves
from onnxtrain.types import FIXED, DataType


def _padded(
    x: Tensor, pads: Any, constant: Any = None, axes: Any = None, *, mode: str = "constant"
) -> Tensor:
    """numpy.pad of the positions, then the elements at them; -1 stands for the constant."""
    widths = [int(n) for n in pads]
    along = list(range(x.ndim)) if axes is None else [int(a) % x.ndim for a in axes]
    each = [(0, 0)] * x.ndim
    for i, axis in enumerate(along):
        each[axis] = (widths[i], widths[i + len(along)])
    places = np.arange(x.numel()).reshape(tuple(x.shape))
    crop = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(each, x.shape, strict=True))
    grow = np.array(each, dtype=int).reshape(-1, 2).clip(min=0)
    if x.ndim == 0:
        return x.clone()
    options = {"constant_values": -1} if mode == "constant" else {}
    found = torch.as_tensor(np.pad(places[crop], grow, mode=mode, **options))  # type: ignore[call-overload]
    value = torch.zeros(1) if constant is None else torch.as_tensor(constant).reshape(1)
    return torch.cat([x.reshape(-1), value.to(x.dtype)])[found]


def _padded_2(x: Tensor, *, pads: Any, mode: str = "constant", value: float = 0.0) -> Tensor:
    return _padded(x, pads, value, mode=mode)


def _padded_1(x: Tensor, *, paddings: Any, mode: str = "constant", value: float = 0.0) -> Tensor:
    return _padded(x, paddings, value, mode=mode)


_WIDTHS = {
    "both": (1, 2, 0, 1),
    "negative": (-1, 1, 2, -2),
    "cut": (-1, 0, 0, -1),
    "none": (0, 0, 0, 0),
}
_PAD = (
    [
        Case(
            "Pad",
            [halves(3, 4), shape_input(*_WIDTHS["both"])],
            _padded,
            {"mode": mode},
            dtypes=FIXED,
        )
        for mode in ("constant", "reflect", "edge", "wrap")
    ]
    + [
        Case(
            "Pad",
            [normal(4, 5), shape_input(*widths)],
            _padded,
            {"mode": mode},
            name=f"{name}-{mode}",
        )
        for mode in ("constant", "reflect", "edge", "wrap")
        for name, widths in _WIDTHS.items()
    ]
    + [
        Case(
            "Pad",
            [halves(3, 4), shape_input(1, 0, 0, 2), given(2.0, constant=True)],
            _padded,
            name="value",
            dtypes=FIXED,
        ),
        Case(
            "Pad",
            [normal(3, 4), shape_input(1, 2), given(1.5, constant=True), shape_input(-1)],
            _padded,
            name="axes",
        ),
        Case(
            "Pad",
            [normal(2, 3, 4), shape_input(1, 2, 3, 0), None, shape_input(2, 0)],
            _padded,
            name="axes-out-of-order",
        ),
        Case(
            "Pad",
            [halves(4), shape_input(1, 2)],
            _padded,
            {"mode": "reflect"},
            name="vector",
            dtypes=FIXED,
        ),
        Case(
            "Pad",
            [normal(2, 3), shape_input(7, 5, 8, 6)],
            _padded,
            {"mode": "wrap"},
            name="far-wrap",
            gradient=False,
        ),
        Case(
            "Pad",
            [normal(2, 3), shape_input(1, 2, 1, 2)],
            _padded,
            {"mode": "reflect"},
            name="far-reflect",
        ),
        Case(
            "Pad",
            [normal(1, 2), shape_input(2, 0, 1, 0)],
            _padded,
            {"mode": "reflect"},
            name="reflect-one",
            gradient=False,
        ),
        Case("Pad", [normal(), shape_input()], _padded, name="scalar", gradient=False),
        Case("Pad", [normal(0, 2), shape_input(1, 0, 1, 0)], _padded, name="empty"),
        Case("Pad", [normal(3), given([1, 2])], _padded, name="fed-pads", gradient=False),
        Case("Pad", [normal(3, 4), shape_input(1, 0, 0, 2)], _padded, opset=11, dtypes=OLD_FLOATS),
        Case("Pad", [normal(3, 4), shape_input(1, 0, 0, 2)], _padded, {"mode": "edge"}, opset=13),
        Case(
            "Pad",
            [normal(3, 4)],
            _padded_2,
            {"pads": [1, 0, 0, 2], "value": 2.5},
            opset=7,
            dtypes=OLD_FLOATS,
        ),
        Case(
            "Pad",
            [normal(3, 4)],
            _padded_2,
            {"pads": [1, 0, 2, 1], "mode": "reflect"},
            opset=7,
            dtypes=OLD_FLOATS,
            gradient=False,
        ),
        Case(
            "Pad",
            [normal(3, 4)],
            _padded_1,
            {"paddings": [1, 0, 0, 2]},
            opset=1,
            dtypes=OLD_FLOATS,
            gradient=False,
        ),
    ]
)
_CENTER = [
    Case("CenterCropPad", [halves(3, 6), shape_input(6, 3)], dtypes=FIXED, gradient=False),
    Case(
        "CenterCropPad",
        [normal(2, 5, 4), shape_input(3, 7)],
        attributes={"axes": [1, 2]},
        gradient=False,
    ),
    Case(
        "CenterCropPad",
        [normal(2, 5, 4), shape_input(4)],
        attributes={"axes": [-1]},
        gradient=False,
    ),
    Case(
        "CenterCropPad",
        [normal(5), given([2], DataType.INT32)],
        name="int32",
        dtypes=FLOAT,
        gradient=False,
    ),
]

CASES: list[Case] = [*_PAD, *_CENTER]
