"""Rows for gradient accumulation, resets and events."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, booleans, given, integers, normal
from onnxtrain.types import MS, OWN, DataType

FLOAT, FLOAT16 = DataType.FLOAT, DataType.FLOAT16


def _sum(old: Tensor, value: Tensor, signal: Tensor | None = None) -> Tensor:
    return old if signal is not None and not signal else old + value


def _buffer(old: Tensor, value: Tensor, flag: Tensor | None = None) -> tuple[Tensor, Tensor]:
    new = value if flag is not None and bool(flag) else old + value
    return torch.ones(1, dtype=torch.bool), new


def _typed(value: Input, dtype: DataType | None) -> Input:
    return value if dtype is None else value.typed(dtype)


_NAN = given(torch.full((3, 4), float("nan")))
_ACCUMULATE = [
    Case(
        op,
        [normal(3, 4), _typed(value, kind), flag],
        reference,
        domain=MS,
        outputs=outputs,
        gradient=False,
        name=f"{name}_{kind.name.lower() if kind else 'same'}",
    )
    for op, reference, outputs in (
        ("InPlaceAccumulator", _sum, 1),
        ("InPlaceAccumulatorV2", _buffer, 2),
    )
    for kind in (None, FLOAT, FLOAT16)
    for name, flag, value in (
        ("plain", None, normal(3, 4)),
        ("false", given([False]), normal(3, 4)),
        ("true", given(True), normal(3, 4)),
    )
]
_ACCUMULATE += [
    Case(
        "InPlaceAccumulator",
        [normal(3, 4), _NAN, given(False)],
        _sum,
        domain=MS,
        gradient=False,
        name="false_nan",
    ),
    Case(
        "InPlaceAccumulator",
        [normal(3, 4), normal(4)],
        _sum,
        domain=MS,
        gradient=False,
        name="broadcast",
    ),
    Case(
        "InPlaceAccumulatorV2",
        [normal(3, 4), normal(3, 4)],
        lambda old, value: torch.ones(1, dtype=torch.bool),
        domain=MS,
        gradient=False,
        name="only_the_flag",
    ),
]
_HANDED = [
    Case(
        "HandOver",
        [normal(3, 4), _typed(normal(3, 4), kind), given([flag]), given([over])],
        lambda old, value, flag, over: value if bool(over) else value.new_empty(0),
        domain=OWN,
        gradient=False,
        name=f"{'over' if over else 'kept'}_{flag}_{kind.name.lower() if kind else 'same'}",
    )
    for over, flag, kind in (
        (True, True, None), (True, False, FLOAT16), (False, True, FLOAT16), (False, False, None)
    )
]  # fmt: skip
_RESET = [
    Case(
        "ZeroGradient",
        [value, signal],
        lambda old, signal: torch.zeros_like(old),
        domain=MS,
        gradient=False,
        name=name,
    )
    for name, value, signal in (
        ("flag", normal(3, 4), booleans(1)),
        ("weight", normal(5), normal(2, 2)),
        ("nan", _NAN, integers(1, high=3)),
    )
]
_EVENTS = [
    Case(
        "RecordEvent",
        [given(identifier), normal(3, 4), integers(2, high=5)],
        lambda event, x, y: (x, y),
        domain=MS,
        outputs=2,
        gradient=False,
        name=str(identifier),
    )
    for identifier in (-1, [7])
]
_EVENTS += [
    Case(
        "RecordEvent",
        [given(8), normal(3, 4), integers(2, high=5)],
        lambda event, x, y: x,
        domain=MS,
        gradient=False,
        name="one_output",
    ),
    Case(
        "WaitEvent",
        [given(-1), normal(3, 4), integers(2, high=5)],
        lambda event, x, y: (x, y),
        domain=MS,
        outputs=2,
        gradient=False,
    ),
]

CASES = [*_ACCUMULATE, *_HANDED, *_RESET, *_EVENTS]
