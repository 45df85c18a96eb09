"""Rows for writing at indices."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, apart, given, integers, normal
from onnxtrain.testing.cases.tensor_inputs import FLOAT, OLD_FLOATS, halves, wholes, without_repeats
from onnxtrain.types import BOOL, FIXED, FLOATS, NUMBERS, DataType

_REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old | new if old.dtype is torch.bool else old + new,
    "mul": lambda old, new: old & new if old.dtype is torch.bool else old * new,
    "max": torch.maximum,
    "min": torch.minimum,
}


def _written(
    data: Tensor, places: list[tuple[int, ...]], updates: list[Tensor], reduction: str
) -> Tensor:
    """One element or slice after the other, without writing in place."""
    strides = torch.empty(data.shape).stride()
    flat = list(data.reshape(-1).unbind())
    for place, update in zip(places, updates, strict=True):
        at = sum((i % n) * s for i, n, s in zip(place, data.shape, strides, strict=False))
        for k, value in enumerate(update.reshape(-1).unbind()):
            flat[at + k] = _REDUCTIONS[reduction](flat[at + k], value)
    return torch.stack(flat).reshape(data.shape) if flat else data.clone()


def _scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    axis %= data.ndim
    places, values = [], []
    for place in itertools.product(*map(range, indices.shape)):
        target = list(place)
        target[axis] = int(indices[place])
        places.append(tuple(target))
        values.append(updates[place])
    return _written(data, places, values, reduction)


def _scatter_nd(
    data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Tensor:
    lead = list(itertools.product(*map(range, indices.shape[:-1])))
    places = [tuple(indices[place].tolist()) for place in lead]
    return _written(data, places, [updates[place] for place in lead], reduction)


def _index(*shape: int, size: int) -> Input:
    return integers(*shape, low=-size, high=size)


_ELEMENTS = [
    Case(
        "ScatterElements",
        [halves(5, 3), without_repeats(2, 3, size=5, axis=0), halves(2, 3)],
        _scatter_elements,
        dtypes=FIXED,
    ),
    Case(
        "ScatterElements",
        [normal(3, 5), without_repeats(2, 4, size=5, axis=1), normal(2, 4)],
        _scatter_elements,
        {"axis": -1},
    ),
    Case(
        "ScatterElements",
        [normal(3), given([-1, 0]), normal(2)],
        _scatter_elements,
        name="negative",
    ),
    Case(
        "ScatterElements",
        [normal(3, 2), given([[0, 1]], DataType.INT32), normal(1, 2)],
        _scatter_elements,
        name="int32",
    ),
    Case(
        "ScatterElements",
        [normal(3, 2), _index(0, 2, size=3), normal(0, 2)],
        _scatter_elements,
        name="nothing",
    ),
    Case(
        "ScatterElements",
        [normal(5), without_repeats(3, size=5, axis=0), normal(3)],
        _scatter_elements,
        opset=11,
        dtypes=OLD_FLOATS,
    ),
    Case(
        "Scatter",
        [normal(5), without_repeats(3, size=5, axis=0), normal(3)],
        _scatter_elements,
        opset=9,
        dtypes=OLD_FLOATS,
        gradient=False,
    ),
    *(
        Case(
            "ScatterElements",
            [wholes(3, 4), _index(6, 4, size=3), wholes(6, 4)],
            _scatter_elements,
            {"reduction": reduction},
            dtypes=FIXED if reduction == "max" else NUMBERS,
            gradient=False,
        )
        for reduction in ("add", "mul", "max", "min")
    ),
    *(
        Case(
            "ScatterElements",
            [halves(6), _index(9, size=6), halves(9)],
            _scatter_elements,
            {"reduction": reduction},
            name=f"bool-{reduction}",
            dtypes=BOOL,
            gradient=False,
        )
        for reduction in ("add", "mul", "max", "min")
    ),
    *(
        Case(
            op,
            [apart(3, 4), places, apart(6, 4, gap=0.07)],
            reference,
            {"reduction": reduction},
            name=f"distinct-{reduction}",
            dtypes=FLOATS,
        )
        for op, reference, places in (
            ("ScatterElements", _scatter_elements, _index(6, 4, size=3)),
            ("ScatterND", _scatter_nd, _index(6, 1, size=3)),
        )
        for reduction in ("mul", "max", "min")
    ),
    Case(
        "ScatterElements",
        [normal(4), _index(50, size=4), normal(50)],
        _scatter_elements,
        {"reduction": "add"},
        name="many",
        dtypes=FLOATS,
        gradient=False,
    ),
]
_ND = [
    Case("ScatterND", [halves(4, 3), given([[1], [-1]]), halves(2, 3)], _scatter_nd, dtypes=FIXED),
    Case(
        "ScatterND",
        [normal(4, 3, 2), given([[[1, 2]], [[0, -1]]]), normal(2, 1, 2)],
        _scatter_nd,
        name="tuples",
    ),
    Case("ScatterND", [normal(4), given([[2], [0]]), normal(2)], _scatter_nd, name="elements"),
    Case(
        "ScatterND",
        [normal(2, 3), given([1, 1]), normal()],
        _scatter_nd,
        name="single",
        gradient=False,
    ),
    Case(
        "ScatterND", [normal(4, 3), _index(0, 1, size=4), normal(0, 3)], _scatter_nd, name="nothing"
    ),
    Case(
        "ScatterND",
        [normal(4, 3), given([[1], [2]]), normal(2, 3)],
        _scatter_nd,
        opset=11,
        dtypes=OLD_FLOATS,
    ),
    *(
        Case(
            "ScatterND",
            [wholes(3, 4), _index(6, 1, size=3), wholes(6, 4)],
            _scatter_nd,
            {"reduction": reduction},
            dtypes=NUMBERS,
            gradient=False,
        )
        for reduction in ("add", "mul", "max", "min")
    ),
]
_CACHE = [
    Case("TensorScatter", [normal(2, 4, 3), normal(2, 2, 3), given([1, 2])], gradient=False),
    Case(
        "TensorScatter",
        [halves(2, 3, 4, 2), halves(2, 3, 2, 2), given([3, 1])],
        attributes={"mode": "circular"},
        dtypes=FIXED,
        gradient=False,
    ),
    Case(
        "TensorScatter",
        [normal(2, 3, 4), normal(2, 3, 1), given([3, 0])],
        attributes={"axis": -1},
        dtypes=FLOAT,
        gradient=False,
    ),
    Case("TensorScatter", [normal(2, 4, 3), normal(2, 2, 3)], name="from-0", gradient=False),
]

CASES: list[Case] = [*_ELEMENTS, *_ND, *_CACHE]
