"""Every operator has a gradient, a declared zero or a reason; the page about them is up to date."""

import pathlib

import onnx
import pytest

from onnxtrain.cli.coverage import Coverage, coverage
from onnxtrain.gradients import rules
from onnxtrain.testing import operators
from onnxtrain.testing.case import Case, apart
from onnxtrain.testing.facts import Facts, facts, look_at
from onnxtrain.testing.reasons import REASONS
from onnxtrain.types import DataType

ROOT = pathlib.Path(__file__).parents[2]
ROWS = {row.name: row for row in coverage()}


def test_every_operator_has_a_gradient_or_a_reason() -> None:
    silent = [name for name, row in ROWS.items() if operators.gradient_of(row) == "none"]
    running = [name for name in silent if ROWS[name].kernels]
    assert sorted(set(running) - REASONS.keys()) == []


def test_every_reason_is_needed() -> None:
    assert sorted(REASONS.keys() - ROWS.keys()) == []
    assert [name for name in REASONS if operators.gradient_of(ROWS[name]) != "none"] == []


def test_the_page_is_up_to_date() -> None:
    written = (ROOT / operators.PAGE).read_text(encoding="utf-8")
    assert written == operators.page(), "make it again with: make operators"


def test_the_page_has_a_row_for_every_operator() -> None:
    page = (ROOT / operators.PAGE).read_text(encoding="utf-8")
    for schema in onnx.defs.get_all_schemas():
        assert f"\n| {schema.name} |" in page


@pytest.mark.parametrize(
    ("op", "once", "silent"),
    [("Mul", set(), set()), ("Gather", set(), set()), ("CastLike", set(), {"target_type"})],
)
def test_facts_are_found(op: str, once: set[str], silent: set[str]) -> None:
    of = facts()["", op]
    assert of.differences and of.autograd and of.reached
    assert of.once == once and of.silent - of.reached == silent


def test_a_gradient_operator_without_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(rules._RULES, ("com.microsoft", "ReluGrad"))
    of = Facts()
    look_at(Case("Relu", [apart(2, 3)]), DataType.DOUBLE, of)
    assert of.once == {"com.microsoft::ReluGrad"} and of.reached == {"X"}


def test_the_words_of_a_line() -> None:
    relu = ROWS["ai.onnx::Relu"]
    assert operators.gradient_of(relu) == "rule"
    assert operators.gradient_of(ROWS["ai.onnx::Shape"]) == "zero"
    assert operators.gradient_of(Coverage("", "Nothing", (), ())) == "none"
    assert operators._second("rule", Facts(differences=1, once={"b", "a"})) == "not through a, b"
    assert operators._second("rule", Facts(differences=1)) == "yes"
    assert operators._second("rule", Facts()) == "-"
    assert operators._versions(relu) == "6 13 14"
