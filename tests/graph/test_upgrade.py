"""Models of opset 6, rewritten to opset 7."""

import numpy as np
import onnx_ir as ir
import pytest

from graph.text import model, proto
from onnxtrain.errors import GraphError
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession

A = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def run(text: str, **feeds: np.ndarray) -> np.ndarray:
    return InferenceSession(proto(text, 6)).run(None, feeds)[0]


def test_the_opset_becomes_7() -> None:
    of = prepare(model("(float[2] x) => (float[2] y) { y = Add(x, x) }", 6))
    assert of.opset_imports[""] == 7


def test_newer_models_stay() -> None:
    assert prepare(model("(float[2] x) => (float[2] y) { y = Neg(x) }", 9)).opset_imports[""] == 9


@pytest.mark.parametrize(
    ("axis", "shape"), [("", (4,)), (", axis = 1", (3,)), (", axis = 0", (2, 3)), ("", ())]
)
def test_operands_are_aligned_at_their_axis(axis: str, shape: tuple[int, ...]) -> None:
    b = np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    dims = f"[{','.join(map(str, shape))}]" if shape else ""
    call = f"Mul <broadcast = 1{axis}> (a, b)"
    text = f"(float[2,3,4] a, float{dims} b) => (float[2,3,4] y) {{ y = {call} }}"
    start = int(axis[-1]) if axis else 3 - len(shape)
    aligned = b.reshape([*shape, *[1] * (3 - start - len(shape))])
    np.testing.assert_array_equal(run(text, a=A, b=b), A * aligned)


def test_slopes_belong_to_channels() -> None:
    slope = np.array([0.5, 2.0, 3.0], np.float32)
    y = run("(float[2,3,4] a, float[3] s) => (float[2,3,4] y) { y = PRelu(a, s) }", a=-A, s=slope)
    np.testing.assert_array_equal(y, -A * slope[:, None])


def test_attributes_that_are_gone_are_dropped() -> None:
    text = """(float[2,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3] y) {
      n = BatchNormalization <is_test = 1> (x, s, b, m, v)  y = Dropout <is_test = 1> (n) }"""
    of = prepare(model(text, 6))
    assert all("is_test" not in node.attributes for node in of.graph)


def test_scales_of_an_upsampling_become_a_list() -> None:
    text = """(float[1,1,2,2] x) => (float[1,1,4,6] y) {
      y = Upsample <height_scale = 2.0, width_scale = 3.0> (x) }"""
    (node,) = prepare(model(text, 6)).graph
    assert list(node.attributes["scales"].as_floats()) == [1.0, 1.0, 2.0, 3.0]


def test_ranks_must_be_known() -> None:
    of = model(
        "(float[2,3] a, float[3] b) => (float y) { y = Mul <broadcast = 1, axis = 1> (a, b) }", 6
    )
    of.graph.inputs[0].shape = None
    with pytest.raises(GraphError, match="ranks are not known"):
        prepare(of)


def test_an_older_model_is_left_alone() -> None:
    of = ir.from_proto(proto("(float[2] x) => (float[2] y) { y = Neg(x) }", 5))
    assert prepare(of).opset_imports[""] == 5
