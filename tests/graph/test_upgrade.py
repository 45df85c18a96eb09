"""Models of opsets before 7, rewritten to opset 7."""

import numpy as np
import pytest

from graph.text import model, proto
from onnxtrain.errors import GraphError
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession

A = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def run(text: str, opset: int = 6, **feeds: np.ndarray) -> np.ndarray:
    return InferenceSession(proto(text, opset)).run(None, feeds)[0]


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
    with pytest.raises(GraphError, match="the ranks of its inputs are not known"):
        prepare(of)


@pytest.mark.parametrize("opset", range(1, 7))
def test_every_old_opset_becomes_7(opset: int) -> None:
    of = prepare(model("(float[2] x) => (float[2] y) { y = Relu(x) }", opset))
    assert of.opset_imports[""] == 7


def test_ranks_are_known_behind_nodes_without_inference() -> None:
    text = """(float[2,3,4] a, float[3] b) => (float[2,3,4] y) {
      s = Add <broadcast = 1, axis = 1> (a, b)  y = Mul <broadcast = 1, axis = 1> (s, b) }"""
    b = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(run(text, 1, a=A, b=b), (A + b[:, None]) * b[:, None])


@pytest.mark.parametrize(
    ("call", "opset", "expected"),
    [
        ("Relu <consumed_inputs = [0]> (a)", 1, A),
        ('Cast <to = "DOUBLE"> (a)', 1, A.astype(np.float64)),
        ('Cast <to = "int32"> (a)', 5, A.astype(np.int32)),
        ("Concat(a, a)", 3, np.concatenate([A, A], 1)),
        ("Concat <axis = 2> (a, a)", 1, np.concatenate([A, A], 2)),
        ("Reshape <shape = [4, 0, -1], consumed_inputs = [0]> (a)", 1, A.reshape(4, 3, 2)),
        ("Pad <paddings = [0, 0, 1, 0, 0, 2], value = 5.0> (a)", 1,
         np.pad(A, ((0, 0), (0, 0), (1, 2)), constant_values=5)),
        ("Selu(a)", 1, np.float32(1.0507) * A),
        ("Selu <gamma = 2.0> (a)", 5, 2 * A),
        ("GlobalLpPool <p = 1.0> (a)", 1, A.sum(2, keepdims=True)),
        ("LpPool <p = 1.0, kernel_shape = [4]> (a)", 1, A.sum(2, keepdims=True)),
        ("Clip <min = 3.0, max = 5.0> (a)", 1, A.clip(3, 5)),
        ("Slice <axes = [1], starts = [1], ends = [9]> (a)", 1, A[:, 1:]),
        ("Dropout <is_test = 1> (a)", 1, A),
        ("Sum <consumed_inputs = [0, 0]> (a, a)", 1, A + A),
        ("ReduceSum <axes = [1]> (a)", 1, A.sum(1, keepdims=True)),
    ],
)  # fmt: skip
def test_operators_that_changed(call: str, opset: int, expected: np.ndarray) -> None:
    dims = ",".join(map(str, expected.shape))
    kind = {"float32": "float", "float64": "double", "int32": "int32"}[expected.dtype.name]
    text = f"(float[2,3,4] a) => ({kind}[{dims}] y) {{ y = {call} }}"
    found = run(text, opset, a=A)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_sizes_of_parts_become_an_attribute() -> None:
    text = """(float[2,3,4] a) => (float[2,1,4] y, float[2,2,4] z)
      <float[2] s = {1, 2}> { y, z = Split <axis = 1> (a, s) }"""
    found = InferenceSession(proto(text, 1)).run(None, {"a": A})
    for part, expected in zip(found, np.split(A, [1], 1), strict=True):
        np.testing.assert_array_equal(part, expected)


def test_repetitions_along_one_axis_become_a_list() -> None:
    text = """(float[2,3,4] a) => (float[2,6,4] y)
      <float[1] n = {2}, float[1] axis = {1}> { y = Tile(a, n, axis) }"""
    np.testing.assert_array_equal(run(text, 1, a=A), np.tile(A, (1, 2, 1)))


def test_repetitions_must_be_constant() -> None:
    text = """(float[2,3,4] a, float[1] n, float[1] axis) => (float[2,6,4] y) {
      y = Tile(a, n, axis) }"""
    with pytest.raises(GraphError, match="the values of its input 1 are not known"):
        prepare(model(text, 1))


def test_statistics_of_a_batch_norm() -> None:
    text = """(float[2,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3,4] y) {
      y = BatchNormalization <is_test = 1, consumed_inputs = [0, 0, 0, 1, 1]> (x, s, b, m, v) }"""
    s, b, m, v = (
        np.array(values, np.float32) for values in ([1, 2, 3], [0, 1, 2], [3, 4, 5], [1, 4, 9])
    )
    expected = (A - m[:, None]) / np.sqrt(v[:, None] + 1e-5) * s[:, None] + b[:, None]
    np.testing.assert_allclose(run(text, 1, x=A, s=s, b=b, m=m, v=v), expected, rtol=1e-5)


def test_slopes_of_the_first_opset() -> None:
    slope = np.array([0.5, 2.0, 3.0], np.float32)
    text = """(float[2,3,4] a, float[3] s) => (float[2,3,4] y) {
      y = PRelu <consumed_inputs = [0, 0]> (a, s) }"""
    np.testing.assert_array_equal(run(text, 1, a=-A, s=slope), -A * slope[:, None])
