"""Rows for sequences and optionals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, normal, shape_input
from onnxtrain.types import OWN, DataType


def _several(*shapes: Sequence[int]) -> Input:
    """A sequence of tensors."""

    def make(generator: torch.Generator) -> list[Tensor]:
        return [torch.randn(tuple(s), generator=generator, dtype=torch.float64) for s in shapes]

    return Input(make, grad=False)  # type: ignore[arg-type]


def _chunks(
    x: Tensor, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[Tensor]:
    size = x.shape[axis]
    if split is None:
        parts = [x.select(axis, i) for i in range(size)]
        return [part.unsqueeze(axis) for part in parts] if keepdims else parts
    step = int(split) if split.ndim == 0 else 0
    sizes = [min(step, size - at) for at in range(0, size, step)] if step else split.tolist()
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [x.narrow(axis, end - n, n) for n, end in zip(sizes, ends, strict=True)]


def _joined(sequence: list[Tensor], *, axis: int, new_axis: int = 0) -> Tensor:
    return torch.stack(sequence, axis) if new_axis else torch.cat(sequence, axis)


def _summed(*sequences: list[Tensor]) -> list[Tensor]:
    return [sum(items[1:], items[0]) for items in zip(*sequences, strict=True)]


def _zeros(shapes: Tensor, *, dtype: int) -> list[Tensor]:
    return [torch.zeros(shape, dtype=torch.float64) for shape in ((2, 3), (2, 1), (0, 2))]


def _added_at(xs: list[Tensor], at: Tensor, x: Tensor) -> list[Tensor]:
    return [y + x if k == int(at) % len(xs) else y for k, y in enumerate(xs)]


def _like_joined(xs: list[Tensor], shape: Tensor, *, axis: int) -> Tensor:
    return torch.cat(xs, axis) if xs else torch.zeros(shape.tolist(), dtype=torch.float64)


_SHAPES = [3, 2, 2, 3, 2, 2, 1, 2, 0, 2]
"""What NestedShapes says about the three: their number, then rank and sizes of each."""
_THREE = _several((2, 3), (2, 1), (0, 2))
_EQUAL = _several((2, 3), (2, 3))

CASES: list[Case] = [
    Case("SequenceConstruct", [normal(2, 3), normal(1)], gradient=False),
    Case("SequenceConstruct", [normal(2, 3)], name="one", gradient=False),
    Case("SequenceEmpty", [], lambda **_: [], {"dtype": DataType.FLOAT}, gradient=False),
    *(
        Case(
            "SequenceAt",
            [_THREE, given(at)],
            lambda xs, i: xs[int(i)],
            name=f"{at}",
            gradient=False,
        )
        for at in (0, 2, -1, -3)
    ),
    *(
        Case(
            "SequenceInsert",
            [_THREE, normal(4), given(at)],
            lambda xs, x, i: [*xs[: int(i)], x, *xs[int(i) :]],
            name=f"{at}",
            gradient=False,
        )
        for at in (0, 1, 3, -1, -3)
    ),
    Case("SequenceInsert", [_THREE, normal(4)], lambda xs, x: [*xs, x], name="end", gradient=False),
    *(
        Case(
            "SequenceErase",
            [_THREE, given(at)],
            lambda xs, i: [x for k, x in enumerate(xs) if k != int(i) % 3],
            name=f"{at}",
            gradient=False,
        )
        for at in (0, 2, -2)
    ),
    Case("SequenceErase", [_THREE], lambda xs: xs[:-1], name="last", gradient=False),
    Case("SequenceLength", [_THREE], lambda xs: torch.tensor(3), gradient=False),
    Case("SplitToSequence", [normal(3, 2)], _chunks, name="slices", gradient=False),
    Case("SplitToSequence", [normal(2, 3)], _chunks, {"axis": -1, "keepdims": 0}, gradient=False),
    Case(
        "SplitToSequence",
        [normal(5, 2), given(2, constant=True)],
        _chunks,
        name="chunks",
        gradient=False,
    ),
    Case(
        "SplitToSequence", [normal(2, 5), shape_input(1, 4)], _chunks, {"axis": 1}, gradient=False
    ),
    Case("SplitToSequence", [normal(4, 2), given([3, 1])], _chunks, opset=11, gradient=False),
    *(
        Case(
            "ConcatFromSequence", [_EQUAL], _joined, {"axis": axis, "new_axis": new}, gradient=False
        )
        for axis, new in ((0, 0), (-1, 0), (0, 1), (2, 1), (-1, 1))
    ),
    Case("Optional", [normal(2, 3)], lambda x: x, gradient=False),
    Case("OptionalHasElement", [normal(2, 3)], lambda x: torch.tensor(True), gradient=False),
    Case("OptionalHasElement", [], lambda: torch.tensor(False), gradient=False),
    Case("OptionalGetElement", [normal(2, 3)], lambda x: x, gradient=False),
    Case("OptionalGetElement", [_EQUAL], lambda xs: xs, name="sequence", gradient=False),
    Case("Identity", [_THREE], lambda xs: xs, name="sequence", gradient=False),
    *(
        Case(op, inputs, reference, options, OWN, name=name, gradient=False, outputs=outputs)
        for op, inputs, reference, options, name, outputs in (
            ("NestedSum", [_EQUAL, _EQUAL], _summed, {}, "two", 1),
            ("NestedSum", [_THREE] * 3, _summed, {}, "three", 1),
            ("NestedShapes", [_THREE], lambda xs: torch.tensor(_SHAPES), {}, "", 1),
            ("NestedZeros", [given(_SHAPES)], _zeros, {"dtype": DataType.DOUBLE}, "", 1),
            ("SequenceAddAt", [_THREE, given(-2), normal(2, 1)], _added_at, {}, "", 1),
            (
                "SequenceSizes",
                [_THREE],
                lambda xs, axis: torch.tensor([3, 1, 2]),
                {"axis": 1},
                "",
                1,
            ),
            ("SequenceJoin", [_EQUAL, given([4, 3])], _like_joined, {"axis": 0}, "", 1),
            ("SequenceJoin", [_several(), given([0, 3])], _like_joined, {"axis": 0}, "nothing", 1),
            ("SequenceConcat", [_THREE, _EQUAL], lambda a, b: [*a, *b], {}, "", 1),
            ("SequenceCut", [_THREE, given(1)], lambda xs, n: (xs[:2], xs[2:]), {}, "", 2),
            ("SequenceCut", [_THREE, given(3)], lambda xs, n: ([], xs), {}, "all", 2),
        )
    ),
]
