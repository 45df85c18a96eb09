"""The rows show all of every operator that has a gradient, or there is a reason."""

import fnmatch

import onnx
import pytest

from onnxtrain.cli.coverage import coverage
from onnxtrain.graph import schemas
from onnxtrain.testing import operators, trials, uncompared, wanted
from onnxtrain.testing.breadth import Seen, look_at, seen
from onnxtrain.testing.case import Case, given, normal
from onnxtrain.testing.table import table
from onnxtrain.testing.unseen import UNSEEN, missing, patterns
from onnxtrain.types import ONNX, op_name

KEYS = sorted(seen())
BODIES = {
    "ai.onnx.preview::FlexAttention": "tests/onnx_backend, by differences",
    "ai.onnx::SequenceMap": "tests/gradients/test_sequence.py",
}
"""Operators that are differentiated by their function body, and what compares them."""


@pytest.mark.parametrize("key", KEYS, ids=lambda key: op_name(*key))
def test_everything_is_seen_or_has_a_reason(key: wanted.Key) -> None:
    lacking = missing(key, seen()[key].labels, wanted.wanted(key))
    assert not lacking, f"no row of {op_name(*key)} shows {', '.join(lacking)}"


def test_every_reason_is_needed() -> None:
    names = [
        f"{op_name(*key)}:{label}"
        for key in KEYS
        for label in wanted.wanted(key) - seen()[key].labels
    ]
    assert [pattern for pattern in patterns() if not fnmatch.filter(names, pattern)] == []
    assert all(UNSEEN)


def test_operators_that_are_differentiated_by_their_body_are_known() -> None:
    found = [row.name for row in coverage() if operators.gradient_of(row) == "body"]
    assert sorted(found) == sorted(BODIES)


@pytest.mark.parametrize("op", ["Abs", "PRelu", "ReduceMean"])
def test_an_operator_without_rows_lacks_everything(op: str) -> None:
    assert missing((ONNX, op), set(), wanted.wanted((ONNX, op))) == sorted(
        wanted.wanted((ONNX, op))
    )


def test_what_one_row_shows() -> None:
    of = Seen()
    look_at(Case("Add", [normal(3, 1), normal(2, 3, 4)]), of)
    assert {"A stretched", "rank 3"} <= of.labels and "B stretched" not in of.labels
    look_at(Case("ReduceSum", [normal(2), given([-1])], attributes={"keepdims": 0}), of)
    assert {"keepdims=0", wanted.NEGATIVE_AXIS, "rank 1"} <= of.labels
    assert "keepdims=1" not in of.labels and len(of.shapes) == 2
    look_at(Case("Gelu", [normal(2)]), of)
    assert "approximate=none" in of.labels and "approximate=tanh" not in of.labels
    look_at(Case("Conv", [normal(1, 1, 3), normal(1, 1, 2)]), of)
    assert "without B" in of.labels


def test_operators_that_say_they_broadcast_are_in_the_table() -> None:
    said = {
        op
        for op in wanted.schemas_with("directional broadcasting")
        if (ONNX, op) in seen() and op not in ("LayerNormalization", "RMSNormalization")
    }
    assert said <= {op for domain, op in wanted.STRETCHED if domain == ONNX}


def test_unary_operators_of_one_type_are_in_the_table() -> None:
    """One input, one output of the same type and no whole number that could name an axis."""
    elementwise = wanted.ELEMENTWISE[ONNX].split()
    unary = [
        op
        for domain, op in KEYS
        if domain == ONNX
        and (of := schemas.get(ONNX, op, onnx.defs.onnx_opset_version())) is not None
        and len(of.inputs) == len(of.outputs) == 1
        and of.inputs[0].type_str == of.outputs[0].type_str
        and all(a.type == onnx.defs.OpSchema.AttrType.FLOAT for a in of.attributes.values())
        and of.inputs[0].option == onnx.defs.OpSchema.FormalParameterOption.Single
    ]
    others = {"Det", "GlobalAveragePool", "GlobalMaxPool"}
    assert set(unary) - set(elementwise) == others


@pytest.mark.parametrize(
    "reasons", [uncompared.ONCE, uncompared.NOT_BY_TORCH], ids=["once", "torch"]
)
def test_rows_that_are_left_out_exist(reasons: dict[str, tuple[str, ...]]) -> None:
    names = [str(case) for case in table()]
    for pattern in (p for group in reasons.values() for p in group):
        assert fnmatch.filter(names, pattern), pattern


def test_every_reduction_of_a_loss_is_differentiated_twice() -> None:
    found: dict[wanted.Key, set[str]] = {}
    for case in trials.twice():
        of = Seen()
        look_at(case, of)
        found.setdefault((case.domain, case.op), set()).update(of.labels)
    losses = [key for key in KEYS if {"reduction=mean", "reduction=sum"} <= wanted.wanted(key)]
    assert len(losses) >= 10
    for key in losses:
        words = {f"reduction={word}" for word in wanted.values(key, "reduction")}
        assert words <= found[key], key


def test_the_tests_of_gradients_run_what_is_counted() -> None:
    assert len(trials.twice()) > 1400 and len(trials.by_differences()) > 2100
