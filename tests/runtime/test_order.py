import pytest
import torch

from onnxtrain.errors import GraphError
from onnxtrain.runtime.plan import Plan
from onnxtrain.runtime.program import Program
from runtime.small import plan, session


def order(made: Plan) -> list[str]:
    return [step.kernel.op for step in made.block.steps if step.kernel.op != "Copy"]


def test_nodes_keep_the_order_of_the_graph() -> None:
    made = plan("(float[2] x) => (float[2] w) { y = Abs(x)  z = Neg(x)  w = Sub(y, z) }")
    assert order(made) == ["Abs", "Neg", "Sub"]


def test_nodes_that_nobody_needs_are_left_out() -> None:
    made = plan("(float[2] x) => (float[2] y) { y = Abs(x)  z = Neg(x)  w = Mul(z, z) }")
    assert order(made) == ["Abs"]


def test_nodes_that_change_something_are_kept() -> None:
    made = plan("(float[2] x, float[2] d) => (float[2] y) { y = Abs(d)  n = test.ops.Bump(x, d) }")
    assert order(made) == ["Abs", "Bump"]


@pytest.mark.parametrize(
    "body",
    [
        "n = test.ops.Bump(x, d)  z = Neg(x)",
        "n = test.ops.Bump(x, d)  t = Identity(x)  z = Neg(t)",
        "t = Identity(x)  n = test.ops.Bump(x, d)  u = Transpose(t)  z = Neg(u)",
    ],
)
def test_a_mutation_waits_for_every_read_of_the_old_value(body: str) -> None:
    text = f"(float[2,1] x, float[2,1] d) => (float[M,N] z, float[2,1] n) {{ {body} }}"
    assert order(plan(text))[-1] == "Bump"
    z, n = session(text).run_torch(None, {"x": torch.ones(2, 1), "d": torch.ones(2, 1)})
    assert z.flatten().tolist() == [-1, -1] and n.flatten().tolist() == [2, 2]


def test_state_is_updated_after_it_was_read() -> None:
    text = """(float[2] s, float[2] d) => (float[2] n, float[2] z) {
        n = test.ops.Accumulate(s, d)  z = Neg(s)
    }"""
    bound = plan(text, state=("s",))
    assert order(bound) == ["Neg", "Accumulate"]
    assert order(plan(text)) == ["Accumulate", "Neg"]
    state = torch.ones(2)
    program = Program(bound, torch.device("cpu"), {"s": state})
    assert [r.tolist() for r in program(torch.ones(2))] == [[2, 2], [-1, -1]]
    assert state.tolist() == [2, 2]


def test_state_that_is_updated_twice_is_updated_in_the_order_of_the_graph() -> None:
    made = plan(
        """(float[2] s, float[2] d) => (float[2] n) {
            m = test.ops.Accumulate(s, d)  z = Neg(m)  n = test.ops.Accumulate(s, z)
        }""",
        state=("s",),
    )
    assert order(made) == ["Accumulate", "Neg", "Accumulate"]
    state = torch.ones(2)
    (result,) = Program(made, torch.device("cpu"), {"s": state})(torch.full((2,), 2.0))
    assert result.tolist() == state.tolist() == [0, 0]


def test_without_state_nothing_is_overwritten() -> None:
    text = "(float[2] s, float[2] d) => (float[2] n) { n = test.ops.Accumulate(s, d) }"
    fed = torch.ones(2)
    (result,) = session(text).run_torch(None, {"s": fed, "d": torch.ones(2)})
    assert result.tolist() == [2, 2] and fed.tolist() == [1, 1]


def test_two_mutations_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(GraphError, match="no order keeps every read") as caught:
        plan(
            "(float[2] a, float[2] b) => (float[2] m, float[2] n) "
            "{ m = test.ops.Bump(a, b)  n = test.ops.Bump(b, a) }"
        )
    assert "'Bump_m'" in str(caught.value)
