"""Rows for reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import (
    Case,
    Input,
    apart,
    booleans,
    given,
    normal,
    only,
    shape_input,
    uniform,
)
from onnxtrain.testing.cases.math.elementwise import OLD_FLOATS
from onnxtrain.types import BOOL, FLOATS, MS, DataType

_Reduce = Callable[[Tensor, list[int], bool], Tensor]


def _max(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return _one_by_one(torch.amax, x, dims, keep)


def _min(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return _one_by_one(torch.amin, x, dims, keep)


def _prod(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return _one_by_one(torch.prod, x, dims, keep)


def _one_by_one(function: Any, x: Tensor, dims: list[int], keep: bool) -> Tensor:
    for dim in sorted((d % x.ndim for d in dims), reverse=True):
        x = function(x, dim, keep)
    return x


_SUMS: dict[str, _Reduce] = {
    "ReduceSum": lambda x, dims, keep: x.sum(dims, keep),
    "ReduceMean": lambda x, dims, keep: x.mean(dims, keep),
    "ReduceL1": lambda x, dims, keep: x.abs().sum(dims, keep),
    "ReduceL2": lambda x, dims, keep: x.square().sum(dims, keep).sqrt(),
    "ReduceLogSum": lambda x, dims, keep: x.sum(dims, keep).log(),
    "ReduceLogSumExp": lambda x, dims, keep: x.exp().sum(dims, keep).log(),
    "ReduceSumSquare": lambda x, dims, keep: x.square().sum(dims, keep),
    "ReduceProd": _prod,
    "ReduceMax": _max,
    "ReduceMin": _min,
}
_EMPTY_SUMS = {
    "ReduceSum": 0.0,
    "ReduceL1": 0.0,
    "ReduceL2": 0.0,
    "ReduceSumSquare": 0.0,
    "ReduceProd": 1.0,
    "ReduceLogSum": float("-inf"),
    "ReduceLogSumExp": float("-inf"),
    "ReduceMax": float("-inf"),
    "ReduceMin": float("inf"),
}


def _reference(reduce: _Reduce) -> Callable[..., Tensor]:
    """A reduction with ONNX's rules for axes."""

    def reference(
        x: Tensor,
        axes_input: Tensor | None = None,
        *,
        axes: Any = (),
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        dims = list(axes) if axes_input is None else list(dict.fromkeys(axes_input.tolist()))
        if not dims and (noop_with_empty_axes or x.ndim == 0):
            return reduce(x.unsqueeze(0), [0], False)
        return reduce(x, dims or list(range(x.ndim)), bool(keepdims))

    return reference


def _values(op: str, *shape: int) -> Input:
    if op in ("ReduceMax", "ReduceMin"):
        return apart(*shape)
    if op in ("ReduceLogSum", "ReduceProd", "ReduceL1", "ReduceL2"):
        return uniform(*shape, low=0.5, high=2)
    return normal(*shape)


def _rows(op: str, reduce: _Reduce) -> list[Case]:
    reference = _reference(reduce)
    since_input = 13 if op == "ReduceSum" else 18

    def row(name: str, inputs: list[Input | None], **options: Any) -> Case:
        return Case(op, inputs, reference, name=name, **options)

    x = _values(op, 2, 3, 4)
    old = {"opset": since_input - 1, "dtypes": FLOATS if since_input > 13 else OLD_FLOATS}
    return [
        row("middle", [x, shape_input(1)]),
        row("two-drop", [x, shape_input(0, 2)], attributes={"keepdims": 0}),
        row("negative", [x, shape_input(-1)]),
        row("negative-drop", [x, shape_input(-1, 0)], attributes={"keepdims": 0}),
        row("all", [x]),
        row("all-drop", [x], attributes={"keepdims": 0}),
        row("no-axes", [x, shape_input()], gradient=False),
        row("noop", [x], attributes={"noop_with_empty_axes": 1}, gradient=False),
        row(
            "noop-input", [x, shape_input()], attributes={"noop_with_empty_axes": 1}, gradient=False
        ),
        row("run-time-axes", [x, given([2, 0])], gradient=False),
        row("scalar", [_values(op)], gradient=False),
        row("attribute", [x], attributes={"axes": [0, -1], "keepdims": 0}, **old),
        row("attribute-keep", [x], attributes={"axes": [1]}, **old),
        row("attribute-all", [x], **old),
        row("v7", [x], attributes={"axes": [1]}, opset=7, dtypes=OLD_FLOATS, gradient=False),
    ]


def _empty_row(op: str, value: float, keep: int) -> Case:
    shape = (2, 1, 3) if keep else (2, 3)
    return Case(
        op,
        [normal(2, 0, 3), shape_input(1)],
        lambda x, axes, keepdims: x.new_full(shape, value),
        {"keepdims": keep},
        name=f"empty-keep{keep}",
        gradient=False,
    )


_INF, _NAN = float("inf"), float("nan")
_SPECIAL = [
    *(_empty_row(op, value, keep) for op, value in _EMPTY_SUMS.items() for keep in (0, 1)),
    *(
        Case(op, [normal(0, 3), shape_input(1)], _reference(reduce), name="nothing", gradient=False)
        for op, reduce in _SUMS.items()
    ),
    *(
        Case(
            op,
            [given([[1.0, _NAN, 2.0], [_INF, 0.0, -_INF]]), shape_input(1)],
            _reference(reduce),
            name="nan",
            gradient=False,
        )
        for op, reduce in _SUMS.items()
        if op in ("ReduceMax", "ReduceMin", "ReduceSum")
    ),
    *(
        Case(op, [booleans(3, 4), shape_input(1)], dtypes=BOOL, name="bool", gradient=False)
        for op in ("ReduceMax", "ReduceMin")
    ),
    Case(
        "ReduceLogSumExp",
        [normal(3, 4, scale=1, mean=300), shape_input(1)],
        lambda x, axes: torch.logsumexp(x, 1, True),
        name="large",
        dtypes=only(DataType.FLOAT, DataType.DOUBLE, DataType.BFLOAT16),
    ),
    Case(
        "ReduceSum",
        [uniform(4, 3000), shape_input(1)],
        _reference(_SUMS["ReduceSum"]),
        name="long",
        gradient=False,
    ),
]


def _arg(function: Any) -> Callable[..., Tensor]:
    def reference(
        x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> Tensor:
        if not select_last_index:
            return torch.as_tensor(function(x, axis, bool(keepdims)))
        return x.shape[axis] - 1 - torch.as_tensor(function(x.flip(axis), axis, bool(keepdims)))

    return reference


_TIES = given([[2.0, 1.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
_ARG = [
    Case(op, inputs, _arg(function), attributes, gradient=False, name=name, opset=opset)
    for op, function in {"ArgMax": torch.argmax, "ArgMin": torch.argmin}.items()
    for name, inputs, attributes, opset in [
        ("default", [apart(3, 4)], {}, None),
        ("axis", [apart(2, 3, 4)], {"axis": 1, "keepdims": 0}, None),
        ("negative", [apart(2, 3, 4)], {"axis": -1}, None),
        ("ties", [_TIES], {"axis": 1}, None),
        ("ties-last", [_TIES], {"axis": 1, "select_last_index": 1}, None),
        ("ties-last-drop", [_TIES], {"axis": -1, "keepdims": 0, "select_last_index": 1}, None),
    ]
]
_ARG += [
    Case(op, [_TIES], _arg(function), {"axis": 1}, opset=opset, dtypes=OLD_FLOATS, gradient=False)
    for op, function in {"ArgMax": torch.argmax, "ArgMin": torch.argmin}.items()
    for opset in (7, 11, 12)
]


def _training_row(name: str, axes: Input, **attributes: int) -> Case:
    return Case(
        "ReduceSumTraining",
        [normal(2, 3, 4), axes],
        _reference(_SUMS["ReduceSum"]),
        attributes,
        domain=MS,
        dtypes=OLD_FLOATS,
        name=name,
        gradient=False,
    )


def _all_l2(*xs: Tensor) -> Tensor:
    return torch.cat([x.reshape(-1) for x in xs]).square().sum().sqrt()


def _broadcast_row(a: list[int], b: list[int], a_axes: list[int], b_axes: list[int]) -> Case:
    return Case(
        "BroadcastGradientArgs",
        [shape_input(*a), shape_input(*b)],
        lambda a_shape, b_shape: (_vector(a_axes), _vector(b_axes)),
        domain=MS,
        outputs=2,
        dtypes=only(DataType.INT64),
        name=f"{a}{b}",
        gradient=False,
    )


def _vector(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


_TRAINING = [
    _training_row("two", shape_input(0, 2)),
    _training_row("drop", shape_input(-1), keepdims=0),
    _training_row("duplicates", shape_input(1, 1), keepdims=0),
    _training_row("all", shape_input()),
    _training_row("noop", shape_input(), noop_with_empty_axes=1, keepdims=0),
    _training_row("run-time-axes", given([1])),
    Case("ReduceAllL2", [normal(3, 4), normal(5), normal(0), normal()], _all_l2, domain=MS),
    Case("ReduceAllL2", [normal(3, 4)], _all_l2, domain=MS, name="one"),
    _broadcast_row([2, 16, 3, 3], [1, 1, 3, 3], [], [1, 0]),
    _broadcast_row([2, 1, 4], [3, 1], [1], [2, 0]),
    _broadcast_row([], [2, 3], [1, 0], []),
    _broadcast_row([3], [1, 3], [0], []),
    _broadcast_row([1, 1], [5], [1], [0]),
    _broadcast_row([0, 3], [1, 3], [], [0]),
    _broadcast_row([1], [1], [], []),
    _broadcast_row([4, 5], [4, 5], [], []),
]

CASES: list[Case] = [
    *(row for op, reduce in _SUMS.items() for row in _rows(op, reduce)),
    *_SPECIAL,
    *_ARG,
    *_TRAINING,
]
