"""What ``check`` tries: an example of an operator in one type, or the gradient of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnxtrain.testing import gradcheck
from onnxtrain.testing.case import Case
from onnxtrain.testing.close import mismatch
from onnxtrain.testing.model import declared_types, draw, evaluate, named
from onnxtrain.testing.table import one_type, trial_types
from onnxtrain.testing.truth import own_errors, truth
from onnxtrain.types import DataType

EXACT, ROUGH = 1e-6, 1e-2
"""Largest error of a slope in double and in float, relative to what it is summed from."""


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """A row of the table of operators in one element type.

    Attributes:
        case: The row.
        dtype: The type.
        gradient: Whether its gradient is tried, not its result.
    """

    case: Case
    dtype: DataType
    gradient: bool = False

    def __str__(self) -> str:
        kind = "gradient of " if self.gradient else ""
        return f"{kind}{self.case}, {self.dtype.name.lower()}"

    def failure(self, device: str) -> str | None:
        """Why it fails on a device; None if it does not."""
        try:
            return self._slope(device) if self.gradient else self._values(device)
        except Exception as error:  # whatever goes wrong is the answer to the question
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

    def _values(self, device: str) -> str | None:
        """Compare all outputs with the truth."""
        case, inputs = self.case, draw(self.case, self.dtype)
        ours = evaluate(case, inputs, device)
        trues, allowed = truth(case, inputs), own_errors(case, self.dtype, inputs)
        types = declared_types(case, inputs)
        rows = zip(named(case), ours, trues, allowed, types, strict=True)
        for index, our, true, own, declared in rows:
            if case.compare is not None and index not in case.compare:
                continue
            if found := mismatch(our, true, own, declared):
                return f"output {index}: {found}"
        return None

    def _slope(self, device: str) -> str | None:
        """Compare the slope along a random direction with a central difference."""
        inputs = draw(self.case, self.dtype)
        at = gradcheck.in_widest(gradcheck.point(self.case, inputs, evaluate(self.case, inputs)))
        direction = gradcheck.random_direction(at, 0)
        slope = gradcheck.along(direction, gradcheck.by_graph(at, device))
        expected = gradcheck.by_differences(at, direction)
        bound = EXACT if gradcheck.is_exact(at) else ROUGH
        if abs(slope.value - expected.value) <= bound * (slope.magnitude + expected.magnitude):
            return None
        return f"slope {slope.value:.9g} by the rule, {expected.value:.9g} by a difference"


def examples(rows: Sequence[Case], all_types: bool) -> list[Trial]:
    """The rows in one type each, or in all of theirs."""
    trials = []
    for case in rows:
        types = trial_types(case) if all_types else [one_type(case)]
        trials += [Trial(case, dtype) for dtype in types if dtype is not None]
    return trials


def slopes(rows: Sequence[Case], *, every: bool) -> list[Trial]:
    """Gradients of the rows that have one to compare, or of one row for each operator."""
    trials, seen = [], set()
    for case in rows:
        key = case.domain, case.op
        if key in seen and not every:
            continue
        dtype = gradcheck.type_for_differences(case)
        if dtype is not None:
            seen.add(key)
            trials.append(Trial(case, dtype, gradient=True))
    return trials
