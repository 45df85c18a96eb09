"""Chains of elementwise operators as one operator: the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain import InferenceSession
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.backward.elementwise import join_elementwise

FORMS = {
    "relu": ("s = Add(x, y) z = Relu(s)", ["Add 0 1; Relu 2"]),
    "tree": ("a = Mul(x, y) b = Sub(x, v) c = Div(a, b) z = Neg(c)", None),
    "spread": ("a = Mul(x, v) b = Add(a, one) c = Sigmoid(b) z = Mul(c, x)", None),
    "twice": (
        "a = Mul(x, y) b = Relu(a) c = Exp(a) z = Add(b, c)",
        ["Relu 0; Exp 0; Add 1 2"],
    ),
    "chosen": (
        "l = Less(x, v) g = Greater(y, one) o = Or(l, g) n = Not(o) w = Where(n, y, x) z = Neg(w)",
        None,
    ),
    "chosen at the end": (
        "g = GreaterOrEqual(x, y) n = LessOrEqual(x, v) a = And(g, n) z = Where(a, one, x)",
        ["GreaterOrEqual 0 1; LessOrEqual 0 2; And 4 5; Where 6 3 0"],
    ),
    "broken": (
        "a = Mul(x, y) b = Relu(a) c = ReduceMax<keepdims=1>(b) d = Sub(b, c) z = Exp(d)",
        ["Sub 0 1; Exp 2", "Mul 0 1; Relu 2"],
    ),
}


def _model(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
        chain (double[2, 3, 4] x, double[2, 3, 4] y, double[4] v) => (double[2, 3, 4] z)
        <double one = {{1.0}}>
        {{ {body} }}
    """)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_changes(form: str) -> None:
    body, lines = FORMS[form]
    random = np.random.default_rng(0)
    feeds = {name: random.normal(size=(2, 3, 4)) for name in ("x", "y")}
    feeds["v"] = random.normal(size=4)
    plain = prepare(load_model(_model(body)))
    joined = prepare(load_model(_model(body)))
    count = join_elementwise(joined)
    found = [n.attributes["steps"].as_string() for n in joined.graph if n.op_type == "Elementwise"]
    assert count == len(found) > 0
    assert lines is None or sorted(found) == sorted(lines)
    used = {v.name for v in plain.graph.inputs if v.uses()}
    one, other = (
        InferenceSession(ir.to_proto(m).SerializeToString()).run(
            None, {v.name: feeds[str(v.name)] for v in m.graph.inputs}
        )[0]
        for m in (plain, joined)
    )
    assert used
    np.testing.assert_allclose(other, one, rtol=1e-14)


@pytest.mark.parametrize(
    "body",
    [
        "z = Add(x, y)",
        "a = Add(v, v) z = Mul(a, x)",
        "a = Add(x, y) b = ReduceSum(a) z = Mul(a, b)",
        "t = Greater(v, one) z = Where(t, x, y)",
        "t = Greater(x, y) c = Cast<to=11>(t) w = Where(t, x, y) r = ReduceMax(w) z = Mul(c, r)",
        "i = Cast<to=6>(x) j = Cast<to=6>(y) t = Greater(i, j) z = Where(t, x, y)",
    ],
)
def test_what_is_no_chain_stays(body: str) -> None:
    model = prepare(load_model(_model(body)))
    before = [node.op_type for node in model.graph]
    assert join_elementwise(model) == 0
    assert [node.op_type for node in model.graph] == before


@pytest.mark.parametrize("lines", [15, 20, 2000])
def test_a_choice_is_not_cut_in_two(lines: int) -> None:
    """What a chain would have to read of another must be numbers."""
    conditions = "t0 = Greater(x, y) " + "".join(f"t{i + 1} = Not(t{i}) " for i in range(lines))
    model = prepare(load_model(_model(f"{conditions} w = Where(t{lines}, x, y) z = Neg(w)")))
    assert join_elementwise(model) == 0


def test_long_chains_are_cut() -> None:
    body = "".join(f"a{i + 1} = Neg(a{i}) " for i in range(1, 40))
    model = prepare(load_model(_model(f"a1 = Neg(x) {body} z = Add(a40, y)")))
    assert join_elementwise(model) == 3
    longest = max(len(n.attributes["steps"].as_string().split(";")) for n in model.graph)
    assert longest == 16
