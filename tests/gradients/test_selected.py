"""What was not selected gets a gradient of zero, also where its slope is not finite."""

from typing import Any

import numpy as np
import pytest

from gradients.against import Twice
from gradients.emit import agrees_with_differences, differentiated, emitted, run
from graph.text import model
from onnxtrain.gradients.selected import fragile
from onnxtrain.graph.prepare import prepare

ABOVE = "(double[4] x, double p) => (double[4] y) <double z = {{0}}> {{ c = Greater(x, z) {} }}"
POINTS = {"x": np.array([-1.5, -0.5, 1.2, 2.0]), "d_y": np.array([1.0, -2.0, 3.0, 0.5])}


@pytest.mark.parametrize(
    "branch",
    [
        "q = Pow(x, p) y = Where(c, q, x)",
        "q = Log(x) r = Mul(q, p) y = Where(c, r, x)",
        "q = Sqrt(x) r = Mul(q, q) y = Where(c, r, x)",
        "q = Log(x) s = Tanh(q) r = Div(s, p) y = Where(c, r, x)",
        "q = Log(x) r = Neg(q) s = Max(r, p) y = Where(c, s, x)",
        "q = Acosh(x) n = Neg(x) k = Exp(n) s = Where(c, k, q) y = Mul(s, p)",
        "q = Log(x) o = Unsqueeze(q, z0) t = ReduceSum<keepdims=0>(o, z0) y = Where(c, t, x)",
    ],
)
def test_branches_that_are_not_numbers_where_they_are_not_taken(branch: str) -> None:
    text = ABOVE.format(branch).replace("{0}>", "{0}, int64[1] z0 = {0}>")
    x = np.array([-1.5, -0.5, 0.2, 0.7]) if "Acosh" in branch else POINTS["x"]
    if "Acosh" in branch:
        text = text.replace("z = {0}", "z = {-9}")
    agrees_with_differences(text, x=x, p=0.7, d_y=POINTS["d_y"])


@pytest.mark.parametrize(
    ("call", "at", "slopes"),
    [
        ("q = Sqrt(x) y = Max(q, p)", [0.0, 0.0, 1.0, 4.0], [0, 0, 0.5, 0.25]),
        ("q = Log(x) y = Relu(q)", [0.0, 0.5, 2.0, 4.0], [0, 0, 0.5, 0.25]),
        ("q = Reciprocal(x) y = Min(q, p)", [0.0, 0.0, 2.0, 4.0], [0, 0, -0.25, -0.0625]),
        ("q = Div(p, x) y = Clip(q, , p)", [0.0, 0.0, 2.0, 4.0], [0, 0, -0.175, -0.04375]),
        ("q = Exp(x) y = Min(q, p)", [1e4, 1e3, -1.0, -2.0], [0, 0, np.exp(-1), np.exp(-2)]),
        ("b = IsNaN(x) q = Mul(x, p) y = Where(b, z, q)", [np.nan, 1.0] * 2, [0, 0.7] * 2),
    ],
)
def test_every_operator_that_selects(call: str, at: list[float], slopes: list[float]) -> None:
    found = run(differentiated(ABOVE.format(call)), x=at, p=0.7, d_y=np.ones(4))
    np.testing.assert_allclose(found["x_grad"], slopes, rtol=1e-12)
    assert all(np.isfinite(found[name]).all() for name in found if name.endswith("_grad"))


def test_what_a_quantiser_cuts_off() -> None:
    """Log(0) is the smallest whole number then; nothing of it reaches what it was made of."""
    text = """(float[3] x) => (float[3] y) <float s = {0.5}, int8 z = {0}> {
        l = Log(x) q = QuantizeLinear(l, s, z) y = DequantizeLinear(q, s, z)
    }"""
    feeds = {"x": np.array([0.0, 1.0, 2.0], np.float32), "d_y": np.ones(3, np.float32)}
    found = run(differentiated(text, "x"), **feeds)["x_grad"]
    assert found.tolist() == [0, 1, 0.5]


@pytest.mark.parametrize(
    "root",
    [
        "a = Mul(x, x) b = Pow(w, two) s = Add(a, b) y = Sqrt(s)",
        "a = Mul(x, x) b = Mul(w, w) s = Sum(a, b) t = Identity(s) y = Sqrt(t)",
        "c = Concat<axis=0>(x, w) r = Reshape(c, sides) q = ReduceSumSquare<keepdims=0>(r, first) "
        "y = Sqrt(q)",
    ],
)
def test_a_length_of_zero_has_no_direction(root: str) -> None:
    text = f"""(double[2] x, double[2] w) => (double[2] y)
      <double two = {{2}}, int64[2] sides = {{2, 2}}, int64[1] first = {{0}}> {{ {root} }}"""
    feeds = {"x": np.array([0.0, 3.0]), "w": np.array([0.0, 4.0]), "d_y": np.ones(2)}
    found = run(differentiated(text), **feeds)
    np.testing.assert_allclose(found["x_grad"], [0, 0.6])
    np.testing.assert_allclose(found["w_grad"], [0, 0.8])
    agrees_with_differences(text, **{**feeds, "x": np.array([1.0, 3.0])})


@pytest.mark.parametrize("sum_", ["b = Add(x, k)", "a = Pow(x, o) b = Add(a, k)"])
def test_a_sum_is_positive_only_if_no_term_is_negative(sum_: str) -> None:
    text = ABOVE.format(f"{sum_} q = Log(b) y = Where(c, q, x)")
    text = text.replace("{0}>", "{0}, double k = {1}, double o = {3}>")
    found = run(differentiated(text), x=[-1.0, -1.0, 1.0, 2.0], p=0.0, d_y=np.ones(4))["x_grad"]
    assert np.isfinite(found).all() and found[0] == 1
    nodes = prepare(model(text.replace("Pow(x, o)", "Mul(x, x)"), 21)).graph
    assert bool(fragile(nodes, 21)) == ("Pow" not in sum_)


def test_second_gradients_are_finite_too() -> None:
    loss = "q = Pow(x, p) y = Where(c, q, x) s = Mul(y, y) l = ReduceSum<keepdims=0>(s)"
    text = ABOVE.format(loss).replace("(double[4] y)", "(double l)")

    def reference(x: Any, p: Any) -> Any:
        q = x.where(x > 0, 1.0) ** p
        return (q.where(x > 0, x) ** 2).sum()

    Twice(text, "x", "p").agrees(reference, x=np.array([-1.5, 0.0, 1.2, 2.0]), p=np.array(0.7))


def test_a_slope_of_nothing_is_kept_where_it_is_finite() -> None:
    loss = "q = Log(x) r = Mul(q, p) y = Where(c, r, x) l = ReduceSum<keepdims=0>(y)"
    text = ABOVE.format(loss).replace("(double[4] y)", "(double l)")

    def reference(x: Any, p: Any) -> Any:
        return (x.where(x > 0, 1.0).log() * p).where(x > 0, x).sum()

    Twice(text, "x", "p").agrees(reference, x=POINTS["x"], p=np.array(0.0))


def test_a_gradient_that_is_not_a_number_for_another_reason_stays_one() -> None:
    text = ABOVE.format("q = Log(x) r = Sqrt(q) y = Where(c, r, x)")
    found = run(differentiated(text), x=[0.5, 2.0, -1.0, 3.0], p=0.7, d_y=np.ones(4))["x_grad"]
    assert np.isnan(found).tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    "call",
    [
        "q = Div(x, k) y = Where(c, q, x)",
        "q = Pow(x, k) y = Where(c, q, x)",
        "q = Mul(x, x) y = Relu(q)",
        "q = Where(c, x, z) y = Log(q)",
        "v = Mul(x, x) e = Add(v, k) d = Sqrt(e) q = Div(x, d) y = Relu(q)",
        "v = Pow(x, k) e = Add(v, k) d = Sqrt(e) r = Reciprocal(d) q = Mul(x, r) y = Relu(q)",
        "e = Clip(x, k) q = Log(e) y = Where(c, q, x)",
        "v = Abs(x) e = Max(v, k) q = Pow(e, h) y = Where(c, q, x)",
        "q = Log(x) m = MatMul(q, q) y = Where(c, m, x)",
    ],
)
def test_what_is_finite_or_not_selected_from_has_no_node_more(call: str) -> None:
    text = ABOVE.format(call).replace("{0}>", "{0}, double k = {2}, double h = {0.5}>")
    assert not any("IsNaN" in line for line in emitted(text))


def test_opsets_that_cannot_select_have_no_guard() -> None:
    text = "(float[4] x) => (float[4] y) { q = Log(x) y = Relu(q) }"
    assert any("IsNaN" in line for line in emitted(text, opset=9))
    assert not any("IsNaN" in line for line in emitted(text, opset=8))


def test_only_what_stands_before_a_selection_is_fragile() -> None:
    text = ABOVE.format("q = Log(x) w = Where(c, q, x) y = Log(w)")
    graph = prepare(model(text, 21)).graph
    assert [node.outputs[0].name for node in fragile(graph, 21)] == ["q"]


def test_what_is_imputed_has_no_gradient() -> None:
    text = (
        "(float[1,3] x, float p) => (float[1,3] y) { q = Pow(x, p) r = Div(q, p) "
        "y = ai.onnx.ml.Imputer<imputed_value_floats=[0.0], replaced_value_float=nan>(r) }"
    )
    of = differentiated(model(text, 21, ai_onnx_ml=3))
    at = np.float32([[-1, 1, 4]])
    found = run(of, x=at, p=np.float32(0.5), d_y=np.ones((1, 3), np.float32))
    np.testing.assert_allclose(found["x_grad"], [[0, 1, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(found["p_grad"], 4 * np.log(4) - 12, rtol=1e-6)
