"""The walk over the graph: fan-out, names, what is skipped, and what is refused."""

import numpy as np
import onnx_ir as ir
import pytest

from graph.text import model, values
from onnxtrain.errors import GraphError, LossError, NoGradientError, RegistrationError
from onnxtrain.gradients import rules
from onnxtrain.gradients.engine import backward, seed_of
from onnxtrain.graph.phase import Phase, nodes_in
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession

OWN = "own.domain"


def differentiated(text: str, xs: list[str], y: str, **domains: int) -> tuple[ir.Model, dict]:
    """The model with the gradients of y among its outputs, and their names by x."""
    of = prepare(model(text, **domains))
    found = values(of)
    seed = ir.Value(name="dy", type=found[y].type, shape=found[y].shape)
    of.graph.inputs.append(seed)
    grads = backward(of.graph, [found[x] for x in xs], {found[y]: seed})
    of.graph.outputs.extend(grads.values())
    return of, {x.name: grad.name for x, grad in grads.items()}


def run(of: ir.Model, **feeds: object) -> dict[str, list]:
    arrays = {k: np.asarray(v, np.float32) for k, v in feeds.items()}
    runs = InferenceSession(of)
    return {
        a.name: value.tolist()
        for a, value in zip(runs.get_outputs(), runs.run(None, arrays), strict=True)
    }


def test_gradients_that_meet_are_summed() -> None:
    of, names = differentiated(
        "(float[2] x) => (float[2] y) { a = Neg(x)  b = Mul(a, x)  y = Add(b, x) }", ["x"], "y"
    )
    assert names == {"x": "x_grad"}
    found = run(of, x=[2, 3], dy=[1, 10])
    assert found["x_grad"] == [-3, -50]


def test_gradients_are_named_after_their_tensors() -> None:
    _, names = differentiated(
        "(float[2] x, float[2] w) => (float[2] y) { a = Mul(x, w)  y = Mul(a, a) }",
        ["x", "w", "a"],
        "y",
    )
    assert names == {"x": "x_grad", "w": "w_grad", "a": "a_grad"}


def test_one_gradient_of_two_tensors_has_both_names() -> None:
    of, names = differentiated(
        "(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", ["x", "w"], "y"
    )
    assert names == {"x": "x_grad", "w": "w_grad"}
    found = run(of, x=[0, 0], w=[0, 0], dy=[5, 6])
    assert found["x_grad"] == found["w_grad"] == [5, 6]


def test_names_that_are_taken_are_avoided() -> None:
    of, names = differentiated(
        "(float[2] x, float[2] x_grad) => (float[2] y) { y = Mul(x, x_grad) }", ["x"], "y"
    )
    assert names["x"] not in ("x", "x_grad", "y", "dy")
    assert run(of, x=[1, 1], x_grad=[2, 3], dy=[1, 1])[names["x"]] == [2, 3]


def test_an_x_that_y_does_not_depend_on_is_left_out() -> None:
    _, names = differentiated(
        "(float[2] x, float[2] w) => (float[2] y, float[2] z) { y = Neg(x)  z = Abs(w) }",
        ["x", "w"],
        "y",
    )
    assert names == {"x": "x_grad"}


def test_a_y_may_be_an_x() -> None:
    of, names = differentiated("(float[2] x) => (float[2] y) { y = Neg(x) }", ["x", "y"], "y")
    found = run(of, x=[1, 2], dy=[3, 4])
    assert found[names["y"]] == [3, 4] and found[names["x"]] == [-3, -4]


def test_backward_nodes_are_marked_and_unused_ones_removed() -> None:
    of, _ = differentiated(
        "(float[2,3] x, float[3,4] w) => (float[2,4] y) { y = MatMul(x, w) }", ["w"], "y"
    )
    grown = list(nodes_in(of.graph, Phase.BACKWARD))
    reads = {v.name for node in grown for v in node.inputs if v is not None}
    assert grown and "w" not in reads
    assert [node.op_type for node in nodes_in(of.graph, Phase.FORWARD)] == ["MatMul"]
    used = {v for node in of.graph for v in node.inputs}
    assert all(v in used for v in of.graph.initializers.values())


def test_broadcast_operands_get_gradients_of_their_own_shape() -> None:
    of, _ = differentiated(
        "(float[2,3] x, float[3] b, float s) => (float[2,3] y) { a = Add(x, b)  y = Mul(a, s) }",
        ["b", "s"],
        "y",
    )
    found = run(of, x=np.zeros((2, 3)), b=[1, 2, 3], s=2, dy=np.ones((2, 3)))
    assert found["b_grad"] == [4, 4, 4] and found["s_grad"] == 12


def test_symbolic_shapes_are_unbroadcast_at_run_time() -> None:
    of, _ = differentiated(
        "(float[N] a, float[M] b) => (float[K] y) { y = Add(a, b) }", ["a", "b"], "y"
    )
    runs = InferenceSession(of)
    for rows in (1, 3):
        feeds = {
            "a": np.ones(rows, np.float32),
            "b": np.ones(3, np.float32),
            "dy": np.ones(3, np.float32),
        }
        da, db = runs.run(["a_grad", "b_grad"], feeds)
        assert da.tolist() == [3 / rows] * rows and db.tolist() == [1, 1, 1]


@pytest.fixture
def own_rules():
    """Room for rules of the test's own domain."""
    rules.load_rules()
    before = dict(rules._RULES)
    yield
    rules._RULES.clear()
    rules._RULES.update(before)


NO_RULE = """(float[2] x, float[2] w) => (float[2] y) {
    a = own.domain.Odd(x)  b = own.domain.Even(a)  y = Add(b, w)
}"""


def typed(text: str) -> ir.Model:
    of = model(text, own_domain=1)
    for value in values(of).values():
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([2])
    return prepare(of)


def test_operators_without_a_rule_are_named_all_at_once() -> None:
    of = typed(
        """(float[2] x, float[2] w) => (float[2] y) {
            a = Relu(x)  b = own.domain.Odd(a)
            c = Mul(b, w)  d = own.domain.Even(c)  e = own.domain.Odd(x)  y = Sum(d, e)
        }"""
    )
    found = values(of)
    with pytest.raises(NoGradientError) as caught:
        backward(of.graph, [found["x"]], {found["y"]: found["w"]})
    text = str(caught.value)
    assert text.startswith("no gradient rule for own.domain::Even, own.domain::Odd\n")
    assert "own.domain::Odd: node 'Odd_e', 'Odd_b'\n" in text
    assert "@gradient('Even', domain='own.domain')" in text


def test_an_operator_that_nobody_knows_is_an_error_and_no_dead_end() -> None:
    of = prepare(model(NO_RULE, own_domain=1))
    found = values(of)
    assert found["a"].type is None
    with pytest.raises(NoGradientError, match=r"no gradient rule for own\.domain::Even"):
        backward(of.graph, [found["x"]], {found["y"]: found["w"]})


def test_operators_beside_the_path_need_no_rule() -> None:
    of = typed(NO_RULE)
    found = values(of)
    grads = backward(of.graph, [found["w"]], {found["y"]: found["x"]})
    assert list(grads) == [found["w"]]


def test_a_declared_zero_ends_the_path(own_rules: None) -> None:
    rules.no_gradient("Odd", "Even", domain=OWN)
    of = typed(NO_RULE)
    found = values(of)
    assert backward(of.graph, [found["x"]], {found["y"]: found["w"]}) == {}


def test_a_rule_must_give_one_gradient_per_input(own_rules: None) -> None:
    @rules.gradient("Odd", "Even", domain=OWN)
    def wrong(op, node, dy):  # type: ignore[no-untyped-def]
        return [dy, dy]

    of = typed(NO_RULE)
    found = values(of)
    with pytest.raises(RegistrationError, match="gave 2 gradients for 1 inputs of node 'Even_b'"):
        backward(of.graph, [found["x"]], {found["y"]: found["w"]})


def test_a_gradient_of_another_type_is_refused(own_rules: None) -> None:
    @rules.gradient("Odd", "Even", domain=OWN)
    def wrong(op, node, dy):  # type: ignore[no-untyped-def]
        return [op.Cast(dy, to=ir.DataType.DOUBLE)]

    of = typed(NO_RULE)
    found = values(of)
    with pytest.raises(GraphError, match=r"own\.domain::Even gave DOUBLE for 'a' of FLOAT"):
        backward(of.graph, [found["x"]], {found["y"]: found["w"]})


def test_two_rules_for_one_operator_are_refused(own_rules: None) -> None:
    rules.no_gradient("Odd", domain=OWN)
    with pytest.raises(RegistrationError, match=r"two gradient rules for own\.domain::Odd"):
        rules.no_gradient("Odd", domain=OWN)


def test_rules_may_differ_by_version(own_rules: None) -> None:
    rules.gradient("Odd", domain=OWN, until=5)(lambda op, node, dy: [dy])
    rules.gradient("Odd", domain=OWN, since=6)(lambda op, node, dy: [None])
    assert rules.find_rule(OWN, "Odd", 5) is not rules.find_rule(OWN, "Odd", 6)


def test_a_rule_for_the_first_output_refuses_gradients_of_the_others(own_rules: None) -> None:
    @rules.gradient("Pair", domain=OWN)
    def first(op, node, dy):  # type: ignore[no-untyped-def]
        return [dy]

    of = typed("(float[2] x, float[2] w) => (float[2] b) { a, b = own.domain.Pair(x) }")
    found = values(of)
    with pytest.raises(NoGradientError, match="takes the gradient of the first output only"):
        backward(of.graph, [found["x"]], {found["b"]: found["w"]})


def test_the_seed_of_a_loss_is_one() -> None:
    of = prepare(model("(float[2] x) => (float y) { y = ReduceSum<keepdims=0>(x) }"))
    seed = seed_of(of.graph, values(of)["y"])
    assert seed.name == "y_grad" and seed.const_value.numpy().tolist() == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(float[2] x) => (float[2] y) { y = Neg(x) }", "must be a scalar"),
        ("(float[N] x) => (float[N] y) { y = Neg(x) }", "must be a scalar"),
        ("(int64 x) => (int64 y) { y = Neg(x) }", "is not a floating point tensor"),
    ],
)
def test_a_loss_must_be_a_floating_point_scalar(text: str, message: str) -> None:
    of = prepare(model(text))
    with pytest.raises(LossError, match=message):
        seed_of(of.graph, values(of)["y"])
