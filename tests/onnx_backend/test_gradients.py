"""ONNX's node cases, differentiated and compared with differences; exclusions must still hold."""

import pytest
from onnx.backend.test.case.test_case import TestCase

from onnx_backend.derivatives import check, float_cases
from onnx_backend.gradient_exclusions import EXCLUDED, INPUTS
from onnx_backend.suite import model_of
from onnxtrain.errors import OnnxTrainError
from onnxtrain.gradients.engine import MissingRules
from onnxtrain.gradients.rules import all_rules
from onnxtrain.testing.facts import facts
from onnxtrain.testing.reasons import REASONS
from onnxtrain.types import op_name

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


_SEQUENCE = "tests/gradients/test_sequence.py"
_TWICE = "tests/gradients/test_second.py, as part of a second gradient"
ELSEWHERE = {
    "ai.onnx::ConcatFromSequence": _SEQUENCE,
    "ai.onnx::Optional": _SEQUENCE,
    "ai.onnx::SequenceAt": _SEQUENCE,
    "ai.onnx::SequenceErase": _SEQUENCE,
    "com.microsoft::BatchNormalizationGrad": _TWICE,
    "com.microsoft::DynamicQuantizeLSTM": "tests/gradients/test_ms.py",
    "com.microsoft::DynamicQuantizeMatMul": "tests/gradients/test_ms.py",
    "com.microsoft::FakeQuant": "tests/gradients/test_quantization.py",
    "com.microsoft::FakeQuantGrad": "tests/gradients/test_quantization.py",
    "com.microsoft::LayerNormalizationGrad": _TWICE,
    "com.microsoft::NGramRepeatBlock": "tests/gradients/test_ms.py",
    "com.microsoft::QGemm": "tests/gradients/test_qgemm.py",
    "com.microsoft::Recv": "tests/gradients/test_communication.py",
    "com.microsoft::Send": "tests/gradients/test_communication.py",
    "com.microsoft::SimplifiedLayerNormalizationGrad": _TWICE,
    "onnxtrain::BatchNormReluGrad": _TWICE,
    "onnxtrain::FlashAttentionGrad": _TWICE,
    "onnxtrain::GroupNormalizedGrad": _TWICE,
    "onnxtrain::LayerNormalizationGradAdd": _TWICE,
    "onnxtrain::NestedSum": _SEQUENCE,
    "onnxtrain::SequenceConcat": _SEQUENCE,
    "onnxtrain::SequenceCut": _SEQUENCE,
    "onnxtrain::SequenceJoin": _SEQUENCE,
    "onnxtrain::SimplifiedLayerNormalizationGradAdd": "tests/gradients/test_norm.py",
}
"""Operators with a rule that neither a row nor a case compares, and what does."""


def test_every_rule_is_compared_somewhere() -> None:
    by_rows = {op_name(*key) for key, of in facts().items() if of.differences}
    used = [model_of(case).graph.node for case in ALL if case.name not in EXCLUDED]
    by_cases = {op_name(node.domain, node.op_type) for nodes in used for node in nodes}
    rules = {op_name(rule.domain, rule.op) for rule in all_rules() if rule.fn is not None}
    assert sorted(rules - by_rows - by_cases) == sorted(ELSEWHERE)
