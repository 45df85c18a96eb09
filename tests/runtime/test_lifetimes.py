import pytest
import torch
from hypothesis import HealthCheck, given, settings

from onnxtrain import InferenceSession
from onnxtrain.runtime.check import check
from onnxtrain.runtime.lifetimes import Storages, live_bytes, shared
from onnxtrain.runtime.plan import Plan
from runtime.random_graphs import Drawn, graphs
from runtime.small import plan, session
from training.small import model_of

lenient = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def taken_over(made: Plan) -> dict[str, str | None]:
    """Which input's storage each operator's output takes over."""
    return {step.kernel.op: step.out for step in made.block.steps}


def freed(made: Plan) -> dict[str, tuple[str, ...]]:
    return {step.kernel.op: step.frees for step in made.block.steps}


@lenient
@given(graphs())
def test_random_graphs_give_what_a_naive_evaluation_gives(drawn: Drawn) -> None:
    for reuse in (True, False):
        runs = session(drawn.text, reuse_storage=reuse)
        feeds = {name: value.clone() for name, value in drawn.feeds.items()}
        results = runs.run_torch(None, feeds)
        for (name, expected), result in zip(drawn.expected.items(), results, strict=True):
            assert torch.equal(result, expected), f"{name}, reuse={reuse}\n{runs.plan.source()}"
        assert all(torch.equal(feeds[name], value) for name, value in drawn.feeds.items())


@lenient
@given(graphs())
def test_plans_of_random_graphs_hold_and_outputs_own_their_storage(drawn: Drawn) -> None:
    made = plan(drawn.text)
    check(made)
    storages = Storages(made.block)
    roots = [storages.root(name) for name in made.block.results]
    assert len(set(roots)) == len(roots)
    assert not set(roots) & {storages.root(name) for name in made.block.parameters}


@pytest.mark.parametrize("many", [4, 40])
def test_what_a_loop_carries_is_joined_in_as_many_pairs_as_there_are_names(many: int) -> None:
    def names(pattern: str) -> str:
        return ", ".join(pattern.format(i) for i in range(many))

    made = InferenceSession(
        model_of(
            f"""(int64 n, {names("float[2] x{}")}) => ({names("float[2] y{}")}) {{
                {names("y{}")} = Loop(n, , {names("x{}")}) <body = b
                    (int64 i, bool go, {names("float[2] s{}")})
                    => (bool on, {names("float[2] t{}")}) {{
                    on = Identity(go) {" ".join(f"t{i} = Neg(s{i})" for i in range(many))}
                }}>
            }}"""
        ).SerializeToString()
    ).plan
    (step,) = (one for one in made.block.steps if one.nested)
    touched = {*step.written, *filter(None, step.reads), *step.nested[0].results}
    assert len(list(shared(step))) <= len(touched)
    storages = Storages(made.block)
    assert len({storages.root(name) for name in touched}) == 1


def test_an_output_takes_over_a_dying_input() -> None:
    text = "(float[2,3] x) => (float[2,3] z) { y = Neg(x)  z = Abs(y) }"
    assert taken_over(plan(text)) == {"Neg": None, "Abs": "y"}
    assert taken_over(plan(text, reuse=False)) == {"Neg": None, "Abs": None}


def test_storage_that_is_read_later_is_left_alone() -> None:
    made = plan("(float[2] x) => (float[2] w) { y = Neg(x)  z = Abs(y)  w = Sub(y, z) }")
    assert taken_over(made)["Abs"] is None


def test_storage_that_a_view_reads_later_is_left_alone() -> None:
    made = plan(
        "(float[2,2] x) => (float[2,2] w) "
        "{ y = Neg(x)  t = Transpose(y)  z = Abs(y)  w = Sub(t, z) }"
    )
    assert taken_over(made)["Abs"] is None
    assert taken_over(made)["Sub"] == "z"


def test_storage_that_the_same_step_reads_through_a_view_is_left_alone() -> None:
    text = "(int64[2,2] x) => (int64[2,2] z) { y = Neg(x)  t = Transpose(y)  z = Sub(y, t) }"
    assert taken_over(plan(text))["Sub"] is None
    x = torch.tensor([[1, 2], [3, 4]])
    assert session(text).run_torch(None, {"x": x})[0].tolist() == [[0, 1], [-1, 0]]


def test_an_input_read_twice_element_by_element_is_taken_over() -> None:
    made = plan("(float[2] x) => (float[2] z) { y = Neg(x)  z = Mul(y, y) }")
    assert taken_over(made)["Mul"] == "y"


def test_a_broadcast_input_is_not_taken_over() -> None:
    made = plan("(float[1] x, float[3] w) => (float[3] z) { y = Neg(x)  z = Add(y, w) }")
    assert taken_over(made)["Add"] is None


def test_equal_symbols_are_equal_shapes_and_different_ones_are_not() -> None:
    made = plan(
        "(float[N] x, float[M] w) => (float[N] a, float[K] b) "
        "{ y = Neg(x)  a = Abs(y)  u = Neg(w)  b = Add(u, x) }"
    )
    assert taken_over(made)["Abs"] == "y"
    assert taken_over(made)["Add"] is None


def test_values_are_freed_where_they_are_last_read() -> None:
    made = plan("(float[2] x) => (float[2] w) { y = Neg(x)  z = Abs(y)  w = Sub(y, z) }")
    assert freed(made) == {"Neg": (), "Abs": (), "Sub": ("y", "z")}


def test_unused_results_are_freed_at_once() -> None:
    made = plan("(float[4] x, int64[1] k) => (float[K] y) { y, i = TopK(x, k) }")
    assert freed(made) == {"TopK": ("_",)}
    made = plan("(float[4] x) => (float[2] b) { a, b = Split<num_outputs=2>(x) }")
    assert freed(made)["Split"] == ("_",)


def test_inputs_and_constants_are_never_freed() -> None:
    made = plan("(float[2] x) => (float[2] y) <float[2] c = {1, 2}> { y = Add(x, c) }")
    assert freed(made) == {"Add": ()}


def test_results_that_share_storage_are_copied() -> None:
    made = plan("(float[2,2] x) => (float[2,2] y, float[2,2] z) { y = Neg(x)  z = Transpose(y) }")
    assert [step.kernel.op for step in made.block.steps] == ["Neg", "Transpose", "Copy"]
    made = plan("(float[2] x) => (float[2] y) { y = Identity(x) }")
    assert [step.kernel.op for step in made.block.steps] == ["Identity", "Copy"]


def test_live_bytes_tell_the_peak() -> None:
    made = plan("(float[2] x) => (float[2] w) { y = Neg(x)  z = Abs(y)  w = Sub(y, z) }")
    assert [held for _, held in live_bytes(made.block, lambda name: 8)] == [8, 16, 16]
