"""ONNX's node cases, differentiated and compared with differences; exclusions must still hold."""

import pytest
from onnx.backend.test.case.test_case import TestCase

from onnx_backend.derivatives import check, float_cases
from onnx_backend.gradient_exclusions import EXCLUDED, INPUTS
from onnx_backend.suite import model_of
from onnxtrain.errors import OnnxTrainError
from onnxtrain.gradients.engine import MissingRules
from onnxtrain.testing.reasons import REASONS

ALL = float_cases()


def params(wanted: bool) -> list[object]:
    """Cases that are excluded by name, or those that are not."""
    return [
        pytest.param(case, id=case.name.removeprefix("test_"))
        for case in ALL
        if (case.name in EXCLUDED) is wanted
    ]


@pytest.mark.parametrize("case", params(False))
def test_gradient_agrees_with_differences(case: TestCase) -> None:
    try:
        check(case)
    except MissingRules as missing:
        assert set(missing.operators) <= REASONS.keys()


@pytest.mark.parametrize("case", params(True))
def test_excluded_case_still_fails(case: TestCase) -> None:
    with pytest.raises((AssertionError, OnnxTrainError)):
        check(case)


def _uses(operator: str) -> list[TestCase]:
    return [case for case in ALL if any(n.op_type == operator for n in model_of(case).graph.node)]


@pytest.mark.parametrize("key", INPUTS, ids=str)
def test_inputs_that_are_left_out_would_fail(key: tuple[str, int]) -> None:
    failed = 0
    for case in _uses(key[0]):
        try:
            check(case, all_inputs=True)
        except (AssertionError, OnnxTrainError):
            failed += 1
    assert failed


def test_every_exclusion_is_a_case() -> None:
    assert EXCLUDED.keys() <= {case.name for case in ALL}


def test_there_are_as_many_cases_as_we_think() -> None:
    assert len(ALL) >= 1300
