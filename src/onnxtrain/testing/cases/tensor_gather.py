"""Rows for reading at indices, and for the gradients of that."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, integers, normal, shape_input
from onnxtrain.testing.cases.tensor_inputs import FLOAT, OLD_FLOATS, halves, transposed
from onnxtrain.types import FIXED, FLOATS, INTS, MS, DataType


def _gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis %= x.ndim
    picked = x.movedim(axis, 0)[indices.long()]
    front = list(range(indices.ndim))
    return picked.movedim(front, [axis + i for i in front])


def _gather_grad(shape: Tensor, indices: Tensor, dy: Tensor, *, axis: int = 0) -> Tensor:
    return transposed(lambda x: _gather(x, indices, axis=axis), shape.tolist(), dy)


def _gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    grid = list(torch.meshgrid(*map(torch.arange, indices.shape), indexing="ij"))
    grid[axis] = indices.long()
    return x[tuple(grid)]


def _gather_elements_grad(dy: Tensor, shape: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return transposed(lambda x: _gather_elements(x, indices, axis=axis), shape.tolist(), dy)


def _gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """One slice after the other."""
    lead = indices.shape[:-1]
    rest = x.shape[batch_dims + indices.shape[-1] :]
    picked = []
    for place in itertools.product(*map(range, lead)):
        picked.append(x[place[:batch_dims] + tuple(indices[place].tolist())])
    return torch.stack(picked).reshape((*lead, *rest)) if picked else x.new_zeros((*lead, *rest))


def _gather_nd_grad(
    shape: Tensor, indices: Tensor, update: Tensor, *, batch_dims: int = 0
) -> Tensor:
    if not indices.numel() and not update.numel():
        return torch.zeros(shape.tolist(), dtype=update.dtype)
    return transposed(
        lambda x: _gather_nd(x, indices, batch_dims=batch_dims), shape.tolist(), update
    )


def _flatten_and_unpad(x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.reshape(-1, *x.shape[2:])
    return torch.stack([rows[int(i)] for i in indices]), torch.tensor(x.shape[:2])


def _pad_and_unflatten(x: Tensor, indices: Tensor, dims: Tensor) -> Tensor:
    where = {int(i): k for k, i in enumerate(indices)}
    empty = torch.zeros(x.shape[1:], dtype=x.dtype)
    rows = [x[where[r]] if r in where else empty for r in range(int(dims.prod()))]
    return torch.stack(rows).reshape(*dims.tolist(), *x.shape[1:])


def _index(*shape: int, size: int) -> Input:
    return integers(*shape, low=-size, high=size)


_GATHER = [
    Case("Gather", [halves(5, 3), _index(2, 2, size=5)], _gather, dtypes=FIXED),
    Case("Gather", [normal(2, 5, 3), _index(4, size=5)], _gather, {"axis": 1}),
    Case("Gather", [normal(2, 5, 3), _index(2, 2, size=3)], _gather, {"axis": -1}),
    Case("Gather", [normal(5, 3), given(-2)], _gather, name="scalar-index"),
    Case("Gather", [normal(5), given(3)], _gather, name="to-scalar"),
    Case("Gather", [halves(5), _index(4, size=5)], _gather, name="vector", dtypes=FIXED),
    Case("Gather", [normal(5, 3), _index(0, size=5)], _gather, name="no-index"),
    Case("Gather", [normal(5, 3), _index(4, size=5).typed(DataType.INT32)], _gather, name="int32"),
    Case("Gather", [normal(5, 3), _index(4, size=5)], _gather, opset=7, dtypes=OLD_FLOATS),
    Case("ShrunkenGather", [halves(5, 3), _index(4, size=5)], _gather, domain=MS, dtypes=FIXED),
    Case("ShrunkenGather", [normal(2, 5, 3), _index(5, size=5)], _gather, {"axis": 1}, domain=MS),
    Case("ShrunkenGather", [normal(5), _index(0, size=5)], _gather, domain=MS, name="no-index"),
]
_GATHER_GRAD = [
    Case(
        "GatherGrad",
        [shape_input(5, 3), _index(2, 4, size=5), normal(2, 4, 3)],
        _gather_grad,
        domain=MS,
    ),
    Case(
        "GatherGrad",
        [shape_input(2, 5, 3), _index(7, size=5), normal(2, 7, 3)],
        _gather_grad,
        {"axis": 1},
        domain=MS,
    ),
    Case(
        "GatherGrad",
        [shape_input(2, 5), _index(3, size=5), normal(2, 3)],
        _gather_grad,
        {"axis": -1},
        domain=MS,
    ),
    Case(
        "GatherGrad",
        [shape_input(5, 3), given(-2), normal(3)],
        _gather_grad,
        domain=MS,
        name="scalar-index",
    ),
    Case(
        "GatherGrad",
        [shape_input(5, 3), _index(0, size=5), normal(0, 3)],
        _gather_grad,
        domain=MS,
        name="no-index",
    ),
    Case(
        "GatherGrad",
        [shape_input(2, 4), _index(300, size=2).typed(DataType.INT32), normal(300, 4)],
        _gather_grad,
        domain=MS,
        name="many",
    ),
    Case(
        "GatherGrad",
        [shape_input(4, 2), given([[0, 2], [2, -4]]), normal(2, 2, 2)],
        _gather_grad,
        domain=MS,
        name="same-row-twice",
    ),
    Case(
        "GatherGrad",
        [shape_input(4, 2), given([[0, 2], [2, -4]]), normal(4, 2)],
        _gather_grad,
        domain=MS,
        name="flat-dy",
        gradient=False,
    ),
]
_ELEMENTS = [
    Case("GatherElements", [halves(3, 4), _index(2, 4, size=3)], _gather_elements, dtypes=FIXED),
    Case("GatherElements", [normal(3, 4), _index(3, 7, size=4)], _gather_elements, {"axis": 1}),
    Case(
        "GatherElements", [normal(2, 3, 4), _index(1, 5, 2, size=3)], _gather_elements, {"axis": -2}
    ),
    Case("GatherElements", [normal(3, 4), _index(0, 4, size=3)], _gather_elements, name="none"),
    Case(
        "GatherElements",
        [normal(4), _index(3, size=4).typed(DataType.INT32)],
        _gather_elements,
        name="int32",
        opset=11,
        dtypes=OLD_FLOATS,
    ),
] + [
    Case(
        "GatherElementsGrad",
        [normal(*at), shape_input(*shape), _index(*at, size=shape[axis])],
        _gather_elements_grad,
        {"axis": axis},
        domain=MS,
        name=f"{shape}-{at}-{axis}",
        gradient=False,
    )
    for shape, at, axis in (
        ((2, 3), (3, 2), 0),
        ((2, 3, 4, 5), (2, 3, 7, 5), 2),
        ((2, 3, 4), (2, 2, 9), -1),
        ((1, 1, 6, 4), (1, 1, 2, 4), 2),
        ((5,), (40,), 0),
        ((4, 3), (0, 3), 0),
        ((4, 0), (4, 0), 0),
    )
]
_ND = [
    Case("GatherND", [halves(3, 4, 2), _index(5, 2, size=3)], _gather_nd, dtypes=FIXED),
    Case("GatherND", [normal(3, 4), _index(2, 3, 1, size=3)], _gather_nd, name="rows"),
    Case(
        "GatherND",
        [halves(3, 4, 5), _index(2, 3, size=3)],
        _gather_nd,
        name="elements",
        dtypes=FIXED,
    ),
    Case("GatherND", [normal(2, 3, 4), _index(2, 5, 1, size=3)], _gather_nd, {"batch_dims": 1}),
    Case("GatherND", [normal(2, 3, 4), _index(2, 3, 2, 1, size=4)], _gather_nd, {"batch_dims": 2}),
    Case(
        "GatherND",
        [normal(2, 3), _index(2, 1, size=3)],
        _gather_nd,
        {"batch_dims": 1},
        name="one-per-batch",
    ),
    Case("GatherND", [normal(3, 4), given([1, -1])], _gather_nd, name="single"),
    Case("GatherND", [normal(3, 4), _index(0, 2, size=3)], _gather_nd, name="none"),
    Case("GatherND", [normal(3, 4), _index(2, 2, size=3)], _gather_nd, opset=11, dtypes=OLD_FLOATS),
] + [
    Case(
        "GatherNDGrad",
        [shape_input(*shape), _index(*at, size=size), normal(*update)],
        _gather_nd_grad,
        {"batch_dims": batch},
        domain=MS,
        name=f"{shape}-{at}-{batch}",
        gradient=False,
    )
    for shape, at, size, update, batch in (
        ((2, 3), (8, 2), 2, (8,), 0),
        ((4, 3), (2, 6, 1), 4, (2, 6, 3), 0),
        ((2, 3, 2), (2, 5, 1), 3, (2, 5, 2), 1),
        ((2, 3, 4), (2, 3, 7, 1), 4, (2, 3, 7), 2),
        ((2, 3), (2, 0), 1, (2, 2, 3), 0),
        ((2, 3), (0, 2), 1, (0,), 0),
    )
]
_UNPAD = [
    Case(
        "FlattenAndUnpad",
        [halves(2, 3, 2), given([4, 0, 3])],
        _flatten_and_unpad,
        domain=MS,
        outputs=2,
        dtypes=FLOATS | INTS,
    ),
    Case(
        "FlattenAndUnpad",
        [normal(2, 2), given([3, 0, 3])],
        _flatten_and_unpad,
        domain=MS,
        outputs=2,
        name="rank-2",
    ),
    Case(
        "FlattenAndUnpad",
        [normal(2, 2), given([1], DataType.INT32)],
        _flatten_and_unpad,
        domain=MS,
        outputs=2,
        dtypes=FLOAT,
        name="int32",
    ),
    Case(
        "PadAndUnflatten",
        [normal(3, 2), given([4, 0, 3]), shape_input(2, 3)],
        _pad_and_unflatten,
        domain=MS,
    ),
    Case(
        "PadAndUnflatten",
        [normal(3), given([1, 5, 2], DataType.INT32), shape_input(3, 2)],
        _pad_and_unflatten,
        domain=MS,
        name="rank-1",
    ),
]

CASES: list[Case] = [*_GATHER, *_GATHER_GRAD, *_ELEMENTS, *_ND, *_UNPAD]
