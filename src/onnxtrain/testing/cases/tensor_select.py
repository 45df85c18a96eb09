"""Rows for choosing elements, and for putting them in another order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, apart, booleans, given, normal, shape_input
from onnxtrain.testing.cases.tensor_inputs import OLD_FLOATS, halves
from onnxtrain.types import FIXED, FLOATS, NUMBERS, DataType


def _where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return x * condition.to(x.dtype) + y * (~condition).to(x.dtype)


def _top_k(
    x: Tensor, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    """Column by column, with Python's stable sort."""
    columns = x.movedim(axis, -1)
    flat = columns.reshape(-1, columns.shape[-1])
    order = [_ranked(row, bool(largest))[: int(k)] for row in flat.tolist()]
    indices = torch.tensor(order, dtype=torch.int64).reshape(*columns.shape[:-1], int(k))
    values = flat[torch.arange(len(flat))[:, None], indices.reshape(-1, int(k))]
    return values.reshape(indices.shape).movedim(-1, axis), indices.movedim(-1, axis)


def _ranked(row: list[float], largest: bool) -> list[int]:
    return sorted(range(len(row)), key=lambda i: -row[i] if largest else row[i])


def _top_k_1(x: Tensor, *, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    return _top_k(x, k, axis=axis)


def _unique(x: Tensor, *, axis: int | None = None, sorted: int = 1) -> list[Tensor]:
    """Slice by slice, compared as Python lists."""
    parts = list(x.reshape(-1) if axis is None else x.movedim(axis, 0))
    keys = [part.reshape(-1).tolist() for part in parts]
    first = [i for i, key in enumerate(keys) if key not in keys[:i]]
    if sorted:
        first.sort(key=lambda i: keys[i])
    inverse = [[keys[i] for i in first].index(key) for key in keys]
    counts = [keys.count(keys[i]) for i in first]
    found = torch.stack([parts[i] for i in first], axis or 0)
    return [found, torch.tensor(first), torch.tensor(inverse), torch.tensor(counts)]


def _compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    x = x.reshape(-1) if axis is None else x
    axis = axis or 0
    kept = [part for part, keep in zip(x.unbind(axis), condition, strict=False) if keep]
    return torch.stack(kept, axis)


def _depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "DCR":
        b, c, h, w = x.shape
        x = x.reshape(b, blocksize**2, c // blocksize**2, h, w).transpose(1, 2).reshape(b, c, h, w)
    return torch.nn.functional.pixel_shuffle(x, blocksize)


def _space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    y = torch.nn.functional.pixel_unshuffle(x, blocksize)
    if mode == "CRD":
        return y
    b, c, h, w = y.shape
    return y.reshape(b, c // blocksize**2, blocksize**2, h, w).transpose(1, 2).reshape(b, c, h, w)


def _reverse_sequence(
    x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    entries = []
    for entry, length in zip(x.movedim((batch_axis, time_axis), (0, 1)), lengths, strict=True):
        entries.append(torch.cat([entry[: int(length)].flip(0), entry[int(length) :]]))
    return torch.stack(entries).movedim((0, 1), (batch_axis, time_axis))


def _col2im(x: Tensor, image: Tensor, block: Tensor, **attributes: Any) -> Tensor:
    padding = attributes.get("pads", (0, 0))[:2]
    return torch.nn.functional.fold(
        x,
        tuple(image.tolist()),
        tuple(block.tolist()),
        dilation=attributes.get("dilations", (1, 1)),
        padding=padding,
        stride=attributes.get("strides", (1, 1)),
    )


_WHERE = [
    Case("Where", [booleans(3, 4), halves(3, 4), halves(3, 4)], _where, dtypes=FIXED),
    Case("Where", [booleans(3, 1), normal(4), normal(2, 1, 1)], _where, name="broadcast"),
    Case("Where", [booleans(2, 3), normal(), normal(2, 3)], _where, name="scalar"),
    Case("Where", [booleans(), normal(2), normal(2)], _where, name="scalar-condition"),
    Case("Where", [booleans(0, 3), normal(0, 3), normal(3)], _where, name="empty"),
    Case("Where", [booleans(3), normal(3), normal(3)], _where, opset=9, dtypes=OLD_FLOATS),
]
_TOP_K = [
    Case("TopK", [apart(3, 6), shape_input(2)], _top_k, outputs=2, dtypes=NUMBERS),
    Case(
        "TopK",
        [halves(3, 9), shape_input(5)],
        _top_k,
        {"largest": 0},
        outputs=2,
        dtypes=NUMBERS,
        name="ties",
        gradient=False,
    ),
    Case("TopK", [apart(6, 3), shape_input(3)], _top_k, {"axis": 0, "sorted": 1}, outputs=2),
    Case("TopK", [apart(2, 6, 3), shape_input(6)], _top_k, {"axis": -2}, outputs=2),
    Case("TopK", [apart(4), given([1])], _top_k, outputs=2, name="fed-k", gradient=False),
    Case("TopK", [apart(4), shape_input(2)], _top_k, outputs=2, opset=10, dtypes=OLD_FLOATS),
    Case("TopK", [apart(4), shape_input(2)], _top_k, outputs=2, opset=11, dtypes=OLD_FLOATS),
    Case(
        "TopK", [apart(3, 4)], _top_k_1, {"k": 2, "axis": 0}, outputs=2, opset=7, dtypes=OLD_FLOATS
    ),
]
_FOUND = (
    [
        Case("NonZero", [halves(4, 5)], dtypes=FIXED, gradient=False),
        Case("NonZero", [given([0.0, 0.0])], name="none", gradient=False),
        Case("NonZero", [halves(7)], opset=9, dtypes=OLD_FLOATS, gradient=False),
        Case(
            "Compress",
            [halves(4, 3), given([True, False, True])],
            _compress,
            {"axis": 0},
            dtypes=FIXED,
            gradient=False,
        ),
        Case(
            "Compress",
            [normal(2, 3), given([False, True, True])],
            _compress,
            {"axis": -1},
            gradient=False,
        ),
        Case(
            "Compress",
            [halves(2, 3), given([False, True, False, False, True])],
            _compress,
            name="flat",
            dtypes=FIXED,
            gradient=False,
        ),
        Case(
            "Compress",
            [normal(3), given([True, True, True])],
            _compress,
            {"axis": 0},
            opset=9,
            dtypes=OLD_FLOATS,
            gradient=False,
        ),
    ]
    + [
        Case(
            "Unique",
            [halves(12)],
            _unique,
            {"sorted": ordered},
            outputs=4,
            dtypes=FIXED,
            gradient=False,
        )
        for ordered in (0, 1)
    ]
    + [
        Case(
            "Unique",
            [halves(2, 8)],
            _unique,
            {"axis": axis, "sorted": ordered},
            outputs=4,
            dtypes=FIXED,
            gradient=False,
        )
        for axis in (1, -1)
        for ordered in (0, 1)
    ]
    + [
        Case("Unique", [given([2.0, 1.0, 1.0, 3.0])], outputs=4, empty=[1, 3], gradient=False),
        Case("Unique", [given([2.0, 1.0, 1.0, 3.0])], opset=11, dtypes=OLD_FLOATS, gradient=False),
    ]
)
_BLOCKS = (
    [
        Case(
            "DepthToSpace",
            [halves(2, 8, 2, 3)],
            _depth_to_space,
            {"blocksize": 2, "mode": mode},
            dtypes=FIXED,
        )
        for mode in ("DCR", "CRD")
    ]
    + [
        Case(
            "SpaceToDepth",
            [halves(2, 3, 4, 6)],
            _space_to_depth,
            {"blocksize": 2, "mode": mode},
            dtypes=FIXED,
        )
        for mode in ("DCR", "CRD")
    ]
    + [
        Case(
            "DepthToSpace",
            [normal(1, 4, 1, 2)],
            _depth_to_space,
            {"blocksize": 2},
            opset=7,
            dtypes=OLD_FLOATS,
        ),
        Case(
            "DepthToSpace",
            [normal(1, 9, 1, 2)],
            _depth_to_space,
            {"blocksize": 3, "mode": "CRD"},
            opset=11,
            dtypes=OLD_FLOATS,
        ),
        Case(
            "SpaceToDepth",
            [normal(1, 1, 2, 4)],
            _space_to_depth,
            {"blocksize": 2},
            opset=7,
            dtypes=OLD_FLOATS,
        ),
    ]
)
_ORDER = [
    Case("ReverseSequence", [halves(4, 3), given([4, 2, 1])], _reverse_sequence, dtypes=FIXED),
    Case(
        "ReverseSequence",
        [normal(3, 4, 2), given([1, 3, 2])],
        _reverse_sequence,
        {"batch_axis": 0, "time_axis": 1},
    ),
    Case(
        "ReverseSequence",
        [normal(4, 2), given([0, 4])],
        _reverse_sequence,
        opset=10,
        dtypes=OLD_FLOATS,
    ),
    Case(
        "Col2Im",
        [normal(2, 6, 8), shape_input(5, 4), shape_input(2, 1)],
        _col2im,
        {"pads": [0, 0, 0, 0], "strides": [2, 1], "dilations": [2, 1]},
    ),
    Case(
        "Col2Im",
        [normal(1, 8, 18), shape_input(4, 5), shape_input(2, 2)],
        _col2im,
        {"pads": [1, 1, 1, 1], "strides": [2, 1]},
        name="padded",
    ),
    Case(
        "Col2Im",
        [normal(1, 10, 12), shape_input(3, 4, 5), shape_input(1, 1, 5)],
        name="volume",
        dtypes=FLOATS,
        gradient=False,
    ),
]
_BIG = DataType.UINT64
_UNSIGNED = [
    Case(
        "TopK",
        [given([-2, 5, -1, 2**62], _BIG), shape_input(2)],
        _top_k,
        outputs=2,
        name="large-unsigned",
        gradient=False,
    ),
]

CASES: list[Case] = [*_WHERE, *_TOP_K, *_FOUND, *_BLOCKS, *_ORDER, *_UNSIGNED]
