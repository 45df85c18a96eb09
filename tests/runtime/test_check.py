import dataclasses
from typing import Any

import pytest

from onnxtrain.errors import GraphError
from onnxtrain.runtime.check import check
from onnxtrain.runtime.plan import Plan
from runtime.small import plan

CHAIN = "(float[2,2] x) => (float[2,2] w) { y = Neg(x)  z = Abs(y)  w = Sub(y, z) }"
VIEWS = """(float[2,2] x) => (float[2,2] w) {
    y = Neg(x)  t = Transpose(y)  z = Abs(y)  w = Sub(t, z)
}"""


def broken(text: str, op: str, **changes: Any) -> Plan:
    """A plan with one step changed."""
    made = plan(text, reuse=False)
    steps = made.block.steps
    index = next(i for i, step in enumerate(steps) if step.kernel.op == op)
    steps[index] = dataclasses.replace(steps[index], **changes)
    return made


def test_sound_plans_pass() -> None:
    check(plan(CHAIN))
    check(plan(VIEWS))


def test_a_read_after_free_is_caught() -> None:
    with pytest.raises(GraphError, match=r"'Sub_w' reads \['y'\], undefined or freed"):
        check(broken(CHAIN, "Abs", frees=("y",)))


def test_a_read_before_definition_is_caught() -> None:
    made = plan(CHAIN)
    made.block.steps.reverse()
    with pytest.raises(GraphError, match="undefined or freed"):
        check(made)


def test_a_second_definition_is_caught() -> None:
    with pytest.raises(GraphError, match=r"defines \['y'\] a second time"):
        check(broken(CHAIN, "Abs", outputs=("y",)))


def test_overwriting_storage_that_is_read_later_is_caught() -> None:
    with pytest.raises(GraphError, match=r"'Abs_z' overwrites 'y', read later as \['y'\]"):
        check(broken(CHAIN, "Abs", out="y"))


def test_overwriting_storage_that_a_view_reads_later_is_caught() -> None:
    with pytest.raises(GraphError, match=r"'Abs_z' overwrites 'y', read later as \['t'\]"):
        check(broken(VIEWS, "Abs", out="y"))


def test_overwriting_storage_that_the_same_step_reads_as_a_view_is_caught() -> None:
    text = "(float[2,2] x) => (float[2,2] z) { y = Neg(x)  t = Transpose(y)  z = Sub(y, t) }"
    with pytest.raises(GraphError, match=r"'Sub_z' overwrites 'y' while it reads \['t'\]"):
        check(broken(text, "Sub", out="y"))


def test_overwriting_an_input_is_caught() -> None:
    with pytest.raises(GraphError, match="'Neg_y' overwrites 'x', which it does not own"):
        check(broken(CHAIN, "Neg", out="x"))


def test_freeing_an_input_is_caught() -> None:
    with pytest.raises(GraphError, match=r"'Neg_y' frees \['x'\], which it does not own"):
        check(broken(CHAIN, "Neg", frees=("x",)))


def test_freeing_a_constant_or_state_is_caught() -> None:
    text = "(float[2] x) => (float[2] y) <float[2] c = {1, 2}> { y = Add(x, c) }"
    with pytest.raises(GraphError, match=r"frees \['c_c'\]"):
        check(broken(text, "Add", frees=("c_c",)))
    made = plan("(float[2] s, float[2] x) => (float[2] y) { y = Add(s, x) }", state=("s",))
    made.block.steps[0].frees = ("s_s",)
    with pytest.raises(GraphError, match=r"frees \['s_s'\]"):
        check(made)


def test_freeing_a_result_is_caught() -> None:
    with pytest.raises(GraphError, match=r"results \['w'\] were freed or never defined"):
        check(broken(CHAIN, "Sub", frees=("w",)))


def test_a_mutation_before_the_last_read_is_caught() -> None:
    made = plan(
        "(float[2] x, float[2] d) => (float[2] y, float[2] z) "
        "{ y = Neg(x)  z = test.ops.Bump(x, d) }"
    )
    made.block.steps[:2] = made.block.steps[1::-1]
    with pytest.raises(GraphError, match=r"'Bump_z' overwrites 'x', read later as \['x'\]"):
        check(made)
