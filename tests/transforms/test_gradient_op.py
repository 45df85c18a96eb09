"""ONNX's Gradient operator."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onnxtrain import backend
from onnxtrain.errors import GraphError
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.transforms.gradient_op import expand_gradients, has_gradients

X = np.array([1.0, -2.0, 3.0], np.float32)


def parsed(text: str) -> onnx.ModelProto:
    header = '<ir_version: 10, opset_import: ["": 18, "ai.onnx.preview.training": 1]> main '
    return onnx.parser.parse_model(
        header + text.replace("Gradient", "ai.onnx.preview.training.Gradient")
    )


CUBE = """(float[3] x, float[3] w) => (float[3] y, float[3] dx, float[3] dw) {
  s = Mul(x, x)  y = Mul(s, w)  dx, dw = Gradient <xs = ["x", "w"], y = "y"> (x, w)
}"""


def test_gradients_of_all_xs() -> None:
    w = np.array([2.0, 0.5, 1.0], np.float32)
    y, dx, dw = backend.run(parsed(CUBE), [X, w])
    np.testing.assert_allclose(y, X * X * w)
    np.testing.assert_allclose(dx, 2 * X * w)
    np.testing.assert_allclose(dw, X * X)


def test_sessions_run_them_as_the_backend_does() -> None:
    w = np.array([2.0, 0.5, 1.0], np.float32)
    session = InferenceSession(parsed(CUBE))
    assert [argument.name for argument in session.get_outputs()] == ["y", "dx", "dw"]
    _, dx, dw = session.run(None, {"x": X, "w": w})
    np.testing.assert_allclose(dx, 2 * X * w)
    np.testing.assert_allclose(dw, X * X)


def test_gradients_go_through_loops_and_function_bodies() -> None:
    text = """(int64 m, float[3] x) => (float[3] d) {
      s = SequenceConstruct(x)
      t = SequenceMap (s) <body = q (float[3] a) => (float[3] c) { c = Mul(a, a) }>
      e = ConcatFromSequence<axis=0>(t)
      y = Loop (m, , e) <body = b (int64 i, bool go, float[3] v) => (bool on, float[3] u)
        { on = Identity(go)  u = Mul(v, v) }>
      d = Gradient <xs = ["x"], y = "y"> (x)
    }"""
    (d,) = InferenceSession(parsed(text)).run(None, {"m": np.array(2), "x": X})
    np.testing.assert_allclose(d, 8 * X**7)


def test_gradients_of_gradients() -> None:
    text = """(float[3] x) => (float[3] d2) {
      s = Mul(x, x)  y = Mul(s, x)
      d1 = Gradient <xs = ["x"], y = "y"> (x)  e = Neg(d1)
      d2 = Gradient <xs = ["x"], y = "e"> (x)
    }"""
    np.testing.assert_allclose(backend.run(parsed(text), [X])[0], -6 * X)


def test_the_gradient_of_what_does_not_matter_is_zero() -> None:
    text = """(float[3] x, float[2] z) => (float[2] dz) {
      y = Mul(x, x)  dx, dz = Gradient <xs = ["x", "z"], y = "y"> (x, z)
    }"""
    np.testing.assert_array_equal(backend.run(parsed(text), [X, X[:2]])[0], [0, 0])


def test_no_gradient_node_is_left() -> None:
    model = expand_gradients(ir.from_proto(parsed(CUBE)))
    assert not has_gradients(model)
    assert [value.name for value in model.graph.outputs] == ["y", "dx", "dw"]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(GraphError, match=r"names \['q'\], which the graph has not"):
        expand_gradients(ir.from_proto(parsed(CUBE.replace('y = "y"', 'y = "q"'))))


def test_other_values_than_the_graph_s_are_refused() -> None:
    with pytest.raises(GraphError, match="feeds another tensor for 'x'"):
        expand_gradients(ir.from_proto(parsed(CUBE.replace("(x, w)\n}", "(s, w)\n}"))))
