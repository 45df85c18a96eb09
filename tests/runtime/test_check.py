import dataclasses
from typing import Any

import pytest

from onnxtrain.errors import GraphError
from onnxtrain.runtime.check import check
from onnxtrain.runtime.plan import Block, Plan, Step
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


def test_overwriting_an_input_through_a_view_is_caught() -> None:
    text = "(float[2,2] x) => (float[2,2] y) { t = Transpose(x)  y = Neg(t) }"
    with pytest.raises(GraphError, match="'Neg_y' overwrites 't', which it does not own"):
        check(broken(text, "Neg", out="t"))


def test_overwriting_what_is_handed_out_in_the_middle_is_caught() -> None:
    made = broken(CHAIN, "Abs", out=None)
    first, second, _ = made.block.steps
    hands_out = dataclasses.replace(first.kernel, special="yield", inplace=())
    middle = Step(hands_out, "", ("y",), ("y",), ("g",), {}, "Yield")
    last = dataclasses.replace(second, outputs=("w",), out="y")
    made.block.steps = [first, middle, last]
    with pytest.raises(GraphError, match="'Abs_z' overwrites 'y', which it does not own"):
        check(made)


def test_keeping_a_value_that_is_read_later_is_caught() -> None:
    made = plan(
        "(float[2] x, float[2] d) => (float[2] y, float[2] z) "
        "{ g = Neg(d)  y = test.ops.Bump(x, g)  z = Abs(g) }",
        state=("x",),
        reuse=False,
    )
    (bump,) = (step for step in made.block.steps if step.kernel.op == "Bump")
    made.block.steps.sort(key=lambda step: step.kernel.op == "Abs")
    check(made)
    bump.keywords["taken"] = "True"
    with pytest.raises(GraphError, match="'Bump_y' keeps 'g', which others read"):
        check(made)


def test_a_body_that_overwrites_what_is_read_outside_is_caught() -> None:
    made = plan(
        "(float[2] s, float[2] d) => (float[2] y, float[2] z) "
        "{ y = Neg(s)  z = test.ops.Bump(s, d) }",
        state=("s",),
    )
    neg, bump, *rest = made.block.steps
    body = Block("body", (), [bump], bump.written)
    branch = Step(neg.kernel, "if", (), (), bump.written, {}, "If", nested=(body,))
    body.steps = [dataclasses.replace(bump, outputs=("inner",))]
    body.results = ("inner",)
    made.block.steps = [neg, dataclasses.replace(branch), *rest]
    check(made)
    made.block.steps[:2] = made.block.steps[1::-1]
    with pytest.raises(GraphError, match="'If' overwrites 's_s', read later as"):
        check(made)


def test_overwriting_what_a_step_does_not_read_is_caught() -> None:
    text = "(float[2,2] x) => (float[2,2] w) { y = Neg(x)  z = Abs(y)  w = MatMul(z, z) }"
    with pytest.raises(GraphError, match="'Abs_z' overwrites 'z', which is no input for that"):
        check(broken(text, "Abs", out="z"))
    with pytest.raises(GraphError, match="'MatMul_w' overwrites 'z', which is no input for that"):
        check(broken(text, "MatMul", out="z"))


def test_overwriting_a_part_of_some_storage_is_caught() -> None:
    text = "(float[2,2] x) => (float[2,1] z) { y = Neg(x)  a, b = Split<axis=1>(y)  z = Abs(b) }"
    with pytest.raises(GraphError, match="'Abs_z' overwrites 'b', a part of its storage"):
        check(broken(text, "Abs", out="b"))


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


def test_freeing_what_is_not_there_is_caught() -> None:
    with pytest.raises(GraphError, match=r"'Abs_z' frees \['w'\], undefined or freed"):
        check(broken(CHAIN, "Abs", frees=("w",)))
    made = plan(CHAIN, reuse=False)
    last = made.block.steps[-1]
    again = dataclasses.replace(last, outputs=("v",), reads=())
    made.block.steps.append(dataclasses.replace(again, frees=("y",)))
    with pytest.raises(GraphError, match=r"'Sub_w' frees \['y'\], undefined or freed"):
        check(made)


@pytest.mark.parametrize("result", ["x", "s_s", "w"])
def test_a_result_in_storage_of_others_is_caught(result: str) -> None:
    made = plan(
        "(float[2] x, float[2] s) => (float[2] v, float[2] w) { v = Add(x, s)  w = Sub(x, s) }",
        state=("s",),
    )
    made.block.results = (result, "w")
    with pytest.raises(GraphError, match="lies in storage of an input, the state or a result"):
        check(made)


def test_a_mutation_before_the_last_read_is_caught() -> None:
    made = plan(
        "(float[2] x, float[2] d) => (float[2] y, float[2] z) "
        "{ y = Neg(x)  z = test.ops.Bump(x, d) }"
    )
    made.block.steps[:2] = made.block.steps[1::-1]
    with pytest.raises(GraphError, match=r"'Bump_z' overwrites 'x', read later as \['x'\]"):
        check(made)
