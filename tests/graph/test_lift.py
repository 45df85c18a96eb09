"""Constants taken out of bodies and functions."""

import numpy as np
import onnx
import onnx_ir as ir

from graph.text import model
from onnxtrain.graph.bodies import bodies, body_tensors, proto_bodies, subgraphs
from onnxtrain.graph.functions import inline_functions
from onnxtrain.graph.lift import lift
from onnxtrain.graph.prepare import prepare
from onnxtrain.graph.verify import verify
from onnxtrain.runtime.session import InferenceSession

CALLS = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
main (bool c, float[2] x) => (float[2] y, float[2] v) <float[2] w = {5.0, 5.0}> {
  h = own.Outer(x)
  k = own.Outer(h)
  y = If (c) <then_branch = t () => (float[2] a) { a = own.Inner(k) },
              else_branch = e () => (float[2] b) { b = Mul(k, w) }>
  v = own.Fixed()
}
<domain: "own", opset_import: ["": 21]> Inner (a, gone) => (b) {
  w = Constant <value = float[2] {2.0, 3.0}> ()
  b = Mul(a, w)
}
<domain: "own", opset_import: ["": 21, "own": 1]> Outer (a) => (b) {
  w_given = Neg(a)
  yes = Constant <value = bool {1}> ()
  m = If (yes) <then_branch = t () => (float[2] p) <float[2] u = {1.0, 4.0}> { p = Add(a, u) },
                else_branch = e () => (float[2] q) { q = Identity(w_given) }>
  b = own.Inner(m)
}
<domain: "own", opset_import: ["": 21]> Fixed () => (b) {
  b = Constant <value = float[2] {7.0, 8.0}> ()
}
<domain: "own", opset_import: ["": 21]> Scaled <alpha> (a) => (b) {
  s = Constant <value_float: float = @alpha> ()
  b = Mul(a, s)
}"""
"""Functions that call each other, one of them twice, with constants on every level."""
X = np.array([1.0, -2.0], np.float32)


def calls() -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(CALLS))


def run(of: ir.Model, condition: bool) -> list[np.ndarray]:
    return InferenceSession(of).run(None, {"c": np.asarray(condition), "x": X})


def test_constants_of_functions_have_names_of_their_own() -> None:
    assert [(one.name, one.place) for one in body_tensors(calls())] == [
        ("w_2", "own:Inner:"),
        ("u", "own:Outer:/m:then_branch"),
        ("b", "own:Fixed:"),
    ]


def test_bodies_are_called_alike_in_both_forms() -> None:
    found = [(place, len(list(body))) for place, body, _ in bodies(calls())]
    protos = proto_bodies(onnx.parser.parse_model(CALLS))
    assert found == [(place, len(body.node)) for place, body in protos]


def test_all_calls_of_a_function_share_what_was_lifted_out_of_it() -> None:
    for condition in (True, False):
        want, of = run(calls(), condition), calls()
        lift(of, lambda one: True)
        verify(of)
        assert [len(f.inputs) for f in of.functions.values()] == [3, 3, 1, 1]
        inline_functions(of)
        assert set(of.graph.initializers) == {"w", "w_2", "u", "b"}
        for found, expected in zip(run(of, condition), want, strict=True):
            np.testing.assert_array_equal(found, expected)


OLD = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
main (float[2] x) => (float y) { h = own.Old(x)  y = ReduceSum<keepdims=0>(h) }
<domain: "own", opset_import: ["": 12]> Old (a) => (b) {
  w = Constant <value = float[2] {2.0, 3.0}> ()
  m = Mul(a, w)
  u = Unsqueeze <axes = [0]> (m)
  b = Squeeze <axes = [0]> (u)
}"""


def test_functions_of_another_opset_take_what_was_lifted() -> None:
    of = ir.from_proto(onnx.parser.parse_model(OLD))
    lift(of, lambda one: True)
    prepare(of)
    assert not of.functions and "w" in of.graph.initializers
    (found,) = InferenceSession(of).run(None, {"x": X})
    assert found == 2 * X[0] + 3 * X[1]


def test_a_constant_that_a_body_returns_is_returned_by_a_copy() -> None:
    of = model(
        """(bool c, float[2] x) => (float[2] y) {
          y = If (c) <then_branch = t () => (float[2] a) {
                        a = Constant <value = float[2] {1.0, 2.0}> () },
                      else_branch = e () => (float[2] b) { b = Neg(x) }>
        }"""
    )
    lift(of, lambda one: True)
    (branch, _) = (body for _, body in subgraphs(of.graph))
    assert list(of.graph.initializers) == ["a"]
    assert [node.op_type for node in branch] == ["Identity"]
    (found,) = InferenceSession(prepare(of)).run(None, {"c": np.asarray(True), "x": X})
    assert found.tolist() == [1, 2]
