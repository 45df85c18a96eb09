"""Rows for slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, normal, shape_input
from onnxtrain.testing.cases.tensor_inputs import OLD_FLOATS, halves
from onnxtrain.types import FIXED, MS, DataType

_END = 2**63 - 1


def _numbers(values: Any) -> list[int]:
    return values.tolist() if isinstance(values, Tensor) else list(values)


def _taken(size: int, start: int, end: int, step: int) -> Tensor:
    """Positions along an axis, step by step."""
    start = max(start + size, 0) if start < 0 else min(start, size if step > 0 else size - 1)
    if end in (_END, 2**31 - 1):
        end = size if step > 0 else -1
    else:
        end = max(end + size, -1 if step < 0 else 0) if end < 0 else min(end, size)
    found = []
    while (start < end) if step > 0 else (start > end):
        found.append(start)
        start += step
    return torch.tensor(found, dtype=torch.int64)


def _slice(x: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Tensor:
    begin, stop = _numbers(starts), _numbers(ends)
    along = list(range(len(begin))) if axes is None else _numbers(axes)
    by = [1] * len(begin) if steps is None else _numbers(steps)
    for axis, a, b, step in zip(along, begin, stop, by, strict=True):
        x = x.index_select(axis, _taken(x.shape[axis], a, b, step))
    return x


def _slice_grad(dy: Tensor, shape: Tensor, *bounds: Any) -> Tensor:
    places = _slice(torch.arange(int(shape.prod())).reshape(shape.tolist()), *bounds)
    dx = torch.zeros(int(shape.prod()), dtype=dy.dtype)
    dx[places.reshape(-1)] = dy.reshape(-1)
    return dx.reshape(shape.tolist())


def _bounds(*lists: Sequence[int] | None) -> list[Input | None]:
    return [None if values is None else shape_input(*values) for values in lists]


_SLICES: dict[str, tuple[list[int], list[Sequence[int] | None]]] = {
    "plain": ([5, 6], [[1, 2], [4, 6]]),
    "axes": ([5, 6], [[2], [5], [1]]),
    "negative-axis": ([2, 3, 6], [[-4], [-1], [-1]]),
    "clamped": ([5, 6], [[-100, 1], [100, _END], [0, 1]]),
    "step": ([7, 3], [[1], [7], [0], [2]]),
    "backwards": ([5, 4], [[-1, 3], [-(2**63), 0], [0, 1], [-1, -2]]),
    "backwards-to-the-end": ([5], [[3], [_END], [0], [-2]]),
    "large-steps": ([5, 4], [[0, 3], [5, -9], [0, 1], [100, -100]]),
    "nothing": ([5, 4], [[3], [2], [0]]),
    "backwards-nothing": ([5, 4], [[1], [3], [0], [-1]]),
    "no-axes": ([3, 2], [[], [], []]),
    "empty-data": ([0, 4], [[1], [3], [0]]),
    "steps-without-axes": ([5, 6], [[0, 1], [5, 6], None, [2, 3]]),
}
_SLICE = [
    Case("Slice", [normal(*shape), *_bounds(*lists)], _slice, name=name)
    for name, (shape, lists) in _SLICES.items()
] + [
    Case("Slice", [halves(5, 6), *_bounds([1, 5], [4, 0], [0, 1], [1, -2])], _slice, dtypes=FIXED),
    Case(
        "Slice",
        [normal(5, 6), given([1]), given([4]), given([0])],
        _slice,
        name="fed",
        gradient=False,
    ),
    Case(
        "Slice",
        [normal(5, 6), given([1, 2], DataType.INT32), given([4, 3], DataType.INT32)],
        _slice,
        name="int32",
        gradient=False,
    ),
    Case("Slice", [normal(5, 6), *_bounds([1], [4], [1])], _slice, opset=10, dtypes=OLD_FLOATS),
    Case(
        "Slice",
        [normal(5, 6)],
        _slice,
        {"starts": [1, -3], "ends": [4, 100]},
        opset=7,
        dtypes=OLD_FLOATS,
    ),
    Case(
        "Slice",
        [normal(5, 6)],
        _slice,
        {"starts": [1], "ends": [-1], "axes": [1]},
        opset=7,
        dtypes=OLD_FLOATS,
    ),
]


def _grad_case(name: str, shape: list[int], lists: list[Sequence[int] | None]) -> Case:
    bounds = [None if values is None else torch.tensor(values) for values in lists]
    part = _slice(torch.zeros(shape), *bounds)
    inputs = [halves(*part.shape), shape_input(*shape), *_bounds(*lists)]
    dtypes = FIXED if name in ("step", "backwards") else OLD_FLOATS
    return Case(
        "SliceGrad", inputs, _slice_grad, domain=MS, dtypes=dtypes, name=name, gradient=False
    )


_SLICE_GRAD = [_grad_case(name, *slices) for name, slices in _SLICES.items()] + [
    Case(
        "SliceGrad",
        [normal(2), shape_input(1, 3), *_bounds([0, 1], [1, 3])],
        _slice_grad,
        domain=MS,
        name="flat-dy",
        gradient=False,
    ),
    Case(
        "SliceGrad",
        [normal(3), shape_input(7), *_bounds([-6], [6], [0], [2])],
        _slice_grad,
        domain=MS,
        name="negative-start",
        gradient=False,
    ),
]

CASES: list[Case] = [*_SLICE, *_SLICE_GRAD]
