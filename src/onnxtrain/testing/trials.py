"""Which rows each test of gradients runs."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable

from onnxtrain.testing import gradcheck
from onnxtrain.testing.case import Case
from onnxtrain.testing.model import draw
from onnxtrain.testing.table import opsets, table, trial_types
from onnxtrain.testing.uncompared import NOT_BY_TORCH, ONCE, is_listed
from onnxtrain.types import ONNX, DataType

ENOUGH = 3
"""Rows of an operator that count as several."""
FIRST_OPSET = 11
"""Before it, GatherElements and most others that second gradients are made of do not exist."""


@functools.cache
def in_type(dtype: DataType) -> tuple[Case, ...]:
    """Rows about gradients that have inputs to differentiate by in a type."""
    return tuple(
        case
        for case in table()
        if case.gradient and gradcheck.rule_of(case) is not None
        if dtype in trial_types(case) and gradcheck.differentiable(case, draw(case, dtype))
    )


@functools.cache
def by_autograd(dtype: DataType) -> tuple[Case, ...]:
    """Rows whose gradient is compared with autograd through their reference.

    All that are about gradients; of operators without such rows some others.
    """
    own = [case for case in in_type(dtype) if case.reference is not None]
    known = {_key(case) for t in (DataType.DOUBLE, DataType.FLOAT) for case in in_type(t)}
    others = [
        case
        for case in by_differences()
        if not case.gradient and case.reference is not None and _key(case) not in known
        if gradcheck.type_for_differences(case) == dtype and not is_listed(case, NOT_BY_TORCH)
    ]
    return (*own, *_first(others))


def in_half(dtype: DataType) -> list[Case]:
    """One row of each operator whose gradient can be taken in a type of 16 bits.

    It is compared with autograd, so it has a reference that torch can differentiate.
    """
    chosen: dict[tuple[str, str], Case] = {}
    for wide in (DataType.DOUBLE, DataType.FLOAT):
        for case in by_autograd(wide):
            if _key(case) not in chosen and dtype in trial_types(case):
                chosen[_key(case)] = case
    return list(chosen.values())


@functools.cache
def by_differences() -> tuple[Case, ...]:
    """Rows whose gradient is compared with differences."""
    return tuple(case for case in table() if gradcheck.type_for_differences(case) is not None)


@functools.cache
def twice() -> tuple[Case, ...]:
    """Rows whose second gradient is compared with differences of the first.

    All that are about gradients in float64; of other operators, or where there are too few, some
    of those whose first gradient is compared with differences.
    """
    exact = in_type(DataType.DOUBLE)
    known = {id(case) for case in exact}
    others = [case for case in by_differences() if id(case) not in known]
    count = collections.Counter(_key(case) for case in exact)
    few = _first([case for case in others if count[_key(case)] < ENOUGH and _can_be(case)])
    return (*(case for case in exact if _can_be(case)), *few)


def _can_be(case: Case) -> bool:
    """Whether a row's gradient can be differentiated again."""
    return opsets(case)[ONNX] >= FIRST_OPSET and not is_listed(case, ONCE)


def _first(cases: Iterable[Case]) -> list[Case]:
    """The first few of each operator, and the first of each way a loss is reduced."""
    count: collections.Counter[tuple[str, ...]] = collections.Counter()
    found = []
    for case in cases:
        how = (*_key(case), str(case.attributes.get("reduction")))
        if count[_key(case)] < ENOUGH or not count[how]:
            found.append(case)
        count.update([_key(case), how])
    return found


def _key(case: Case) -> tuple[str, str]:
    return case.domain, case.op
