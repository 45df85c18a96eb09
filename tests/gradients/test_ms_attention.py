"""Models with fused attention have the gradients of what was fused."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import onnxtrain
from graph.text import proto
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.weights.parameters import decide

_random = np.random.default_rng(0)


def floats(*shape: int) -> npt.NDArray[Any]:
    return _random.standard_normal(shape).astype(np.float32)


FUSED = """(float[batch,length,12] x, int32[batch] lengths) => (float[batch,length,12] y) {
    y = com.microsoft.Attention<num_heads=3, unidirectional=1>(x, w, b, lengths)
}"""
PRIMITIVE = """(float[batch,length,12] x, int32[batch] lengths) => (float[batch,length,12] y) {
    product = MatMul(x, w)
    qkv = Add(product, b)
    heads = Reshape(qkv, shape)
    apart = Transpose<perm=[2,0,3,1,4]>(heads)
    q, k, v = Split<axis=0, num_outputs=3>(apart)
    kt = Transpose<perm=[0,1,2,4,3]>(k)
    raw = MatMul(q, kt)
    scores = Div(raw, two)
    length = Shape<start=1, end=2>(x)
    scalar = Squeeze(length)
    places = Range(zero, scalar, one)
    column = Unsqueeze(places, axis)
    ahead = Greater(places, column)
    ends = Cast<to=7>(lengths)
    each = Reshape(ends, rows)
    behind = GreaterOrEqual(places, each)
    closed = Or(ahead, behind)
    masked = Where(closed, least, scores)
    weights = Softmax(masked)
    attended = MatMul(weights, v)
    moved = Transpose<perm=[0,1,3,2,4]>(attended)
    y = Reshape(moved, merged)
}"""


def test_a_fused_model_has_the_gradients_of_what_was_fused() -> None:
    constants = {
        "w": floats(12, 36),
        "b": floats(36),
        "two": np.float32(2),
        "least": np.float32(-1e30),
        "zero": np.int64(0),
        "one": np.int64(1),
        "axis": np.array([1]),
        "rows": np.array([-1, 1, 1, 1]),
        "shape": np.array([0, 0, 3, 3, 4]),
        "merged": np.array([2, 5, 12]),
    }
    feeds = {
        "x": floats(2, 5, 12),
        "lengths": np.array([4, 5], np.int32),
        "y_grad": floats(2, 5, 12),
    }
    feeds["y_grad"][0, 4] = 0  # what padding gives is not defined
    found = []
    for text in (FUSED, PRIMITIVE):
        model = proto(text, com_microsoft=1)
        tensors = [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
        model.graph.initializer.extend(tensors)
        found.append(onnxtrain.grad(model, wrt=["x", "w", "b"])(feeds))
    for name, true in found[1].items():
        np.testing.assert_allclose(found[0][name], true, rtol=1e-4, atol=1e-4)


def test_angles_of_positions_are_no_weights() -> None:
    text = """(float[2,3,64] x, int64[2,3] ids) => (float[2,3,64] y) {
        a = MatMul(x, w)
        y = com.microsoft.RotaryEmbedding(a, ids, cos, sin)
    }"""
    model = proto(text, com_microsoft=1)
    for name, value in (("w", floats(64, 64)), ("cos", floats(10, 8)), ("sin", floats(10, 8))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    decisions = {one.name: one.trained for one in decide(prepare(load_model(model)))}
    assert decisions == {"w": True, "cos": False, "sin": False}
