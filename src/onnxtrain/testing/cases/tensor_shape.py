"""Rows for operators that change the shape alone, or tell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxtrain.testing.case import Case, given, normal, shape_input
from onnxtrain.testing.cases.tensor_inputs import FLOAT, OLD_FLOATS, halves
from onnxtrain.types import FIXED, FLOATS, MS


def _same(x: Tensor) -> Tensor:
    return x.clone()


def _reshape(data: Tensor, target: Sequence[int] | Tensor, allowzero: int = 0) -> Tensor:
    wanted = list(map(int, target))
    if not allowzero:
        wanted = [data.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    empty = np.empty(tuple(data.shape)).reshape(wanted)
    return data.reshape(empty.shape)


def _reshape_attribute(data: Tensor, *, shape: Sequence[int]) -> Tensor:
    return _reshape(data, shape)


def _flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    rows = int(np.prod(x.shape[:axis])) if axis else 1
    columns = x.numel() // rows if rows else int(np.prod(x.shape[axis:]))
    return x.reshape(rows, columns)


def _squeeze(x: Tensor, axes: Any = None) -> Tensor:
    drop = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
    return x.reshape([n for i, n in enumerate(x.shape) if i not in drop or n != 1])


def _unsqueeze(x: Tensor, axes: Any) -> Tensor:
    shown = np.expand_dims(np.empty(tuple(x.shape)), tuple(int(a) for a in axes))
    return x.reshape(shown.shape)


def _transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    order = list(range(x.ndim))[::-1] if perm is None else list(perm)
    return torch.einsum(x, list(range(x.ndim)), order)


def _expand(x: Tensor, shape: Tensor) -> Tensor:
    return x + torch.zeros(shape.tolist(), dtype=x.dtype)


def _tile(x: Tensor, repeats: Tensor) -> Tensor:
    for axis, count in enumerate(repeats.tolist()):
        x = torch.cat([x] * count, axis) if count else x.narrow(axis, 0, 0)
    return x


def _tile_1(x: Tensor, tiles: Tensor, axis: Tensor) -> Tensor:
    return torch.cat([x] * int(tiles), int(axis))


def _view(x: Tensor, *shapes: Tensor) -> list[Tensor]:
    parts, flat, at = [], x.flatten(), 0
    for shape in shapes:
        count = int(shape.prod())
        parts.append(flat[at : at + count].reshape(shape.tolist()))
        at += count
    return parts


def _pass_through(*inputs: Tensor) -> Any:
    return inputs if len(inputs) > 1 else inputs[0]


_IDENTITY = [
    Case("Identity", [halves(2, 3)], _same, dtypes=FIXED),
    Case("Identity", [normal()], _same, name="scalar"),
    Case("Identity", [normal(0, 2)], _same, name="empty", opset=7, dtypes=OLD_FLOATS),
    Case(
        "PassThrough",
        [normal(2, 3), normal(4)],
        _pass_through,
        domain=MS,
        outputs=2,
        gradient=False,
    ),
    Case(
        "Group",
        [normal(2, 3), given([1, 2])],
        lambda *xs: torch.tensor(True),
        domain=MS,
        dtypes=FLOAT,
        gradient=False,
    ),
]

_ABOUT = [
    Case("Shape", [halves(2, 3, 4)], dtypes=FIXED, gradient=False),
    Case("Shape", [normal(2, 3, 4)], attributes={"start": 1}, gradient=False),
    Case("Shape", [normal(2, 3, 4)], attributes={"start": -2, "end": -1}, gradient=False),
    Case("Shape", [normal(2, 3, 4)], attributes={"start": -9, "end": 9}, gradient=False),
    Case("Shape", [normal()], name="scalar", gradient=False),
    Case("Shape", [normal(0, 2)], opset=7, dtypes=OLD_FLOATS, gradient=False),
    Case("Size", [halves(2, 3, 4)], dtypes=FIXED, gradient=False),
    Case("Size", [normal()], name="scalar", gradient=False),
    Case("Size", [normal(0, 2)], opset=7, dtypes=OLD_FLOATS, gradient=False),
]

_RESHAPE = [
    Case("Reshape", [halves(2, 3, 4), shape_input(4, 6)], _reshape, dtypes=FIXED),
    Case("Reshape", [normal(2, 3, 4), shape_input(0, -1)], _reshape, name="keep-and-infer"),
    Case("Reshape", [normal(2, 3), given([3, 2])], _reshape, name="fed-shape", gradient=False),
    Case("Reshape", [normal(1), shape_input()], _reshape, name="to-scalar"),
    Case("Reshape", [normal(), shape_input(1, 1)], _reshape, name="from-scalar"),
    Case("Reshape", [normal(0, 3), shape_input(3, 0)], _reshape, {"allowzero": 1}),
    Case("Reshape", [normal(2, 0, 3), shape_input(-1, 3)], _reshape, name="empty-infer"),
    Case("Reshape", [normal(2, 3), shape_input(-1)], _reshape, opset=7, dtypes=OLD_FLOATS),
    Case("Reshape", [normal(0, 3), shape_input(3, -1)], _reshape, opset=13, name="empty-moved"),
    Case("Reshape", [normal(0, 0), shape_input(0, 2)], _reshape, opset=13, name="empty-grown"),
    Case(
        "Reshape",
        [normal(2, 3)],
        _reshape_attribute,
        {"shape": [3, 2]},
        opset=1,
        dtypes=OLD_FLOATS,
        gradient=False,
    ),
]

_FLATTEN = [
    Case("Flatten", [halves(2, 3, 4)], _flatten, dtypes=FIXED),
    *(Case("Flatten", [normal(2, 3, 4)], _flatten, {"axis": axis}) for axis in (0, 2, 3, -1)),
    Case("Flatten", [normal()], _flatten, {"axis": 0}, name="scalar"),
    Case("Flatten", [normal(2, 0, 3)], _flatten, name="empty"),
    Case("Flatten", [normal(2, 3)], _flatten, opset=7, dtypes=OLD_FLOATS),
]

_SQUEEZE = [
    Case("Squeeze", [halves(1, 3, 1, 2), shape_input(0, 2)], _squeeze, dtypes=FIXED),
    Case("Squeeze", [normal(1, 3, 1, 2), shape_input(-2)], _squeeze, name="negative"),
    Case("Squeeze", [normal(1, 3, 1, 2)], _squeeze, name="all"),
    Case("Squeeze", [normal(3, 1)], _squeeze, {"axes": [1]}, opset=7, dtypes=OLD_FLOATS),
    Case("Squeeze", [normal(3, 1)], _squeeze, {"axes": [-1]}, opset=11, dtypes=OLD_FLOATS),
    Case("Unsqueeze", [halves(3, 2), shape_input(0, 3)], _unsqueeze, dtypes=FIXED),
    Case("Unsqueeze", [normal(3, 2), shape_input(-1, 1)], _unsqueeze, name="mixed"),
    Case("Unsqueeze", [normal(), shape_input(0)], _unsqueeze, name="scalar"),
    Case("Unsqueeze", [normal(3)], _unsqueeze, {"axes": [0]}, opset=7, dtypes=OLD_FLOATS),
    Case("Unsqueeze", [normal(3)], _unsqueeze, {"axes": [-1]}, opset=11, dtypes=OLD_FLOATS),
]

_TRANSPOSE = [
    Case("Transpose", [halves(2, 3, 4)], lambda x: x.swapaxes(0, 2), dtypes=FIXED),
    Case("Transpose", [normal(2, 3, 4)], _transpose, {"perm": [0, 2, 1]}),
    Case("Transpose", [normal(2, 3, 4)], _transpose, {"perm": [2, 0, 1]}),
    Case("Transpose", [normal()], _same, name="scalar"),
    Case("Transpose", [normal(3, 0)], _transpose, name="empty"),
    Case("Transpose", [normal(2, 3)], _transpose, opset=7, dtypes=OLD_FLOATS),
]

_REPEAT = [
    Case("Expand", [halves(3, 1), shape_input(2, 1, 4)], _expand, dtypes=FIXED),
    Case("Expand", [normal(2, 3), shape_input(1, 1)], _expand, name="smaller-shape"),
    Case("Expand", [normal(), shape_input(2, 3)], _expand, name="scalar"),
    Case("Expand", [normal(1, 3), shape_input(0, 3)], _expand, name="to-nothing"),
    Case("Expand", [normal(3), given([2, 3])], _expand, name="fed-shape", gradient=False),
    Case("Expand", [normal(3), shape_input(2, 3)], _expand, opset=8, dtypes=OLD_FLOATS),
    Case("Tile", [halves(2, 3), shape_input(2, 2)], _tile, dtypes=FIXED),
    Case("Tile", [normal(2, 1, 3), shape_input(1, 3, 2)], _tile, name="three-axes"),
    Case("Tile", [normal(2, 3), shape_input(1, 1)], _tile, name="once"),
    Case("Tile", [normal(2, 3), shape_input(0, 1)], _tile, name="never", gradient=False),
    Case("Tile", [normal(2, 3), shape_input(2, 1)], _tile, opset=7, dtypes=OLD_FLOATS),
    Case(
        "Tile",
        [normal(2, 3), given(3.0, constant=True), given(1.0, constant=True)],
        _tile_1,
        opset=1,
        dtypes=OLD_FLOATS,
        gradient=False,
    ),
]

_VIEW = [
    Case(
        "View",
        [normal(2, 3), shape_input(1, 2), shape_input(4)],
        _view,
        domain=MS,
        outputs=2,
        dtypes=FLOATS,
        gradient=False,
    ),
    Case(
        "View",
        [normal(2, 3), shape_input(2), shape_input(2, 2)],
        _view,
        domain=MS,
        outputs=2,
        empty=[0],
        name="first-unused",
        gradient=False,
    ),
    Case(
        "View",
        [normal(2, 3), shape_input(0, 4), shape_input(6), shape_input(0)],
        _view,
        domain=MS,
        outputs=3,
        name="empty-parts",
        gradient=False,
    ),
]

CASES: list[Case] = [
    *_IDENTITY,
    *_ABOUT,
    *_RESHAPE,
    *_FLATTEN,
    *_SQUEEZE,
    *_TRANSPOSE,
    *_REPEAT,
    *_VIEW,
]
