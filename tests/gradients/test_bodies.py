"""Operators without a rule: their schema's body is differentiated, where a gradient crosses it."""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from gradients.against import Twice
from graph.text import model, proto
from onnxtrain.gradients import build_gradient_graph, rules
from onnxtrain.gradients.bodies import expand_without_rule
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession

X = np.array([1.0, -2.0, 4.0])


@pytest.fixture
def fewer_rules() -> Iterator[None]:
    """HardSwish and Softplus without a rule."""
    rules.load_rules()
    before = {key: rules._RULES.pop(key) for key in (("", "HardSwish"), ("", "Softplus"))}
    yield
    rules._RULES.update(before)


def ops(of: ir.Model) -> list[str]:
    return [node.op_type for node in of.graph.all_nodes()]


def test_the_body_is_differentiated(fewer_rules: None) -> None:
    text = "(double[3] x) => (double l) { y = Softplus(x)  l = ReduceSum<keepdims=0>(y) }"
    Twice(text, "x").agrees(lambda x: torch.nn.functional.softplus(x).sum(), x=X)


def test_only_what_a_gradient_must_cross_is_expanded(fewer_rules: None) -> None:
    text = """(double[3] x, double[3] z, bool c) => (double[3] y, double[3] v) {
      a = HardSwish(z)  b = Mul(a, x)
      y = If (c) <then_branch = t () => (double[3] p) { p = HardSwish(b) },
                  else_branch = e () => (double[3] q) { q = Neg(b) }>
      v = HardSwish(x) }"""
    of = expand_without_rule(prepare(model(text)), ["x"], ["y"])
    assert ops(of).count("HardSwish") == 2 and ops(of).count("HardSigmoid") == 1


def test_functions_of_the_model_are_differentiated() -> None:
    text = '<domain: "own", opset_import: ["": 21]> Square (a) => (b) { b = Mul(a, a) }'
    header = '<ir_version: 10, opset_import: ["": 21, "own": 1]> main '
    main = """(double[3] x, bool c) => (double l) {
      y = If (c) <then_branch = t () => (double[3] p) { p = own.Square(x) },
                  else_branch = e () => (double[3] q) { q = Neg(x) }>
      l = ReduceSum<keepdims=0>(y) }"""
    of = build_gradient_graph(onnx.parser.parse_model(f"{header}{main}\n{text}"), "x", loss="l")
    assert not of.functions
    (dx,) = InferenceSession(of).run(["x_grad"], {"x": X, "c": np.array(True)})
    np.testing.assert_array_equal(dx, 2 * X)


def test_a_model_whose_operators_all_have_rules_stays_as_it_is() -> None:
    of = prepare(ir.from_proto(proto("(float[3] x) => (float[3] y) { y = HardSwish(x) }")))
    assert ops(expand_without_rule(of, ["x"], ["y"])) == ["HardSwish"]
