"""Rows of elementwise operators in the ranks that their families leave out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from onnxtrain.testing.case import Case, Input, only
from onnxtrain.testing.uncompared import pattern_of
from onnxtrain.testing.wanted import is_elementwise
from onnxtrain.types import DataType

SHAPES: tuple[tuple[int, ...], ...] = ((), (5,), (2, 1, 2))
"""One of each rank that must have been seen; the largest stands for all above."""
_COUNT = 5
_TYPES = only(DataType.DOUBLE)


def other_ranks(rows: Iterable[Case]) -> list[Case]:
    """What is missing, made of the first row of each operator that has enough elements."""
    families: dict[tuple[str, str], list[Case]] = {}
    for case in rows:
        if is_elementwise((case.domain, case.op)):
            families.setdefault((case.domain, case.op), []).append(case)
    return [row for family in families.values() for row in _missing(family)]


def _missing(family: Sequence[Case]) -> Iterator[Case]:
    drawn = [(c, c.draw()) for c in family if c.opset is None and pattern_of(c) is None]
    template = next(case for case, values in drawn if _is_template(case, values))
    has = {_rank(values) for case, values in drawn if case.gradient == template.gradient}
    for shape in SHAPES:
        if len(shape) not in has:
            yield _reshaped(template, shape)


def _is_template(case: Case, values: Sequence[Any]) -> bool:
    """Whether the large inputs of a row have one shape, and results are finite numbers."""
    large = {v.shape for v in values if isinstance(v, torch.Tensor) and v.numel() > 1}
    floats = DataType.DOUBLE in case.dtypes and case.name != "far"
    return floats and len(large) == 1 and next(iter(large)).numel() >= _COUNT


def _rank(values: Sequence[Any]) -> int:
    ranks = [v.ndim for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return min(max(ranks, default=0), 3)


def _reshaped(case: Case, shape: tuple[int, ...]) -> Case:
    inputs = [item and dataclasses.replace(item, make=_cut(item, shape)) for item in case.inputs]
    return dataclasses.replace(
        case, inputs=inputs, dtypes=_TYPES & case.dtypes, name=f"rank-{len(shape)}"
    )


def _cut(item: Input, shape: tuple[int, ...]) -> Any:
    def make(generator: torch.Generator) -> Any:
        value = item.make(generator)
        count = torch.Size(shape).numel()
        return value if value.numel() <= 1 else value.flatten()[:count].reshape(shape).clone()

    return make
