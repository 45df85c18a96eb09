"""Every row with a gradient: the gradient graph against autograd and against differences."""

import pytest
import torch

from gradients import points
from onnxtrain.errors import OnnxTrainError
from onnxtrain.testing import gradcheck, trials
from onnxtrain.testing.case import Case
from onnxtrain.testing.close import largest_error, mismatch
from onnxtrain.testing.gradcheck import Point
from onnxtrain.testing.table import table
from onnxtrain.testing.uncompared import UNCOMPARED, pattern_of
from onnxtrain.types import DataType, op_name

EXACT = 1e-9
"""Largest error of a gradient in float64, relative to the largest gradient of the row."""
DIFFERENCE = 1e-6
"""Largest error of a central difference, relative to the magnitudes that it is summed from: the
rounding and truncation errors of the step are below 1e-10 for functions of unit scale, which
leaves four digits for those with large higher derivatives."""
ROUGH = 1e-2
"""The same where some output, or every type of the operator, is float32."""


@pytest.mark.parametrize("case", trials.by_autograd(DataType.DOUBLE), ids=str)
def test_gradient_agrees_with_autograd(case: Case, device: str) -> None:
    at = points.drawn(case, DataType.DOUBLE)
    at = at if case.gradient else gradcheck.in_widest(at)
    expected = gradcheck.by_autograd(at)
    largest = max((float(g.abs().max()) for g in expected if g.numel()), default=0.0) or 1.0
    on_cpu = device == "cpu"
    found = points.by_graph(at, DataType.DOUBLE) if on_cpu else gradcheck.by_graph(at, device)
    for ours, true in zip(found, expected, strict=True):
        assert ours.shape == true.shape
        if true.numel():
            assert float((ours - true).abs().max()) <= EXACT * largest


@pytest.mark.parametrize("case", trials.by_differences(), ids=str)
def test_gradient_agrees_with_differences(case: Case) -> None:
    dtype = gradcheck.type_for_differences(case)
    assert dtype is not None
    at = gradcheck.in_widest(points.drawn(case, dtype))
    _compare(at, points.by_graph(at, dtype))


def _compare(at: Point, grads: list[torch.Tensor]) -> None:
    bound = DIFFERENCE if gradcheck.is_exact(at) else ROUGH
    for seed in range(3):
        direction = gradcheck.random_direction(at, seed)
        slope = gradcheck.along(direction, grads)
        expected = gradcheck.by_differences(at, direction)
        scale = slope.magnitude + expected.magnitude
        assert abs(slope.value - expected.value) <= bound * scale


def _left_out() -> dict[str, list[Case]]:
    """Rows that are not compared, by the pattern that leaves them out."""
    found: dict[str, list[Case]] = {p: [] for group in UNCOMPARED.values() for p in group}
    for case in table():
        pattern, rule = pattern_of(case), gradcheck.rule_of(case)
        if pattern is not None and rule is not None and gradcheck.type_to_move(case) is not None:
            found[pattern].append(case)
    return found


LEFT_OUT = _left_out()


@pytest.mark.parametrize("pattern", LEFT_OUT)
def test_rows_that_are_not_compared_would_fail(pattern: str) -> None:
    assert LEFT_OUT[pattern], "there is no such row"
    with pytest.raises((AssertionError, RuntimeError, OnnxTrainError)):
        for case in LEFT_OUT[pattern]:
            dtype = gradcheck.type_to_move(case)
            assert dtype is not None
            at = gradcheck.in_widest(gradcheck.drawn(case, dtype))
            _compare(at, gradcheck.by_graph(at))


@pytest.mark.parametrize("case", trials.by_autograd(DataType.FLOAT), ids=str)
def test_gradient_in_float32(case: Case) -> None:
    at = gradcheck.drawn(case, DataType.FLOAT)
    exact = gradcheck.by_autograd(gradcheck.widened(at))
    own = gradcheck.by_autograd(at)
    for ours, true, rough in zip(gradcheck.by_graph(at), exact, own, strict=True):
        assert mismatch(ours, true, largest_error(rough, true)) is None


def test_operators_without_a_rule_are_reported(without_rule: list[str]) -> None:
    asked = [case for case in table() if case.gradient]
    found = {op_name(case.domain, case.op) for case in asked if gradcheck.rule_of(case) is None}
    without_rule.extend(sorted(found))
    assert len(found) < len({(case.domain, case.op) for case in asked})
