"""Gradients in one line."""

import numpy as np
import pytest
import torch

import onnxtrain
from graph.text import proto
from onnxtrain.errors import FeedError, GraphError, ParameterError

LOSS = """(float[2] x) => (float l, float[2] b) <float[2] w = {3.0, 4.0}> {
    a = Mul(x, w)  b = Mul(a, a)  l = ReduceSum<keepdims=0>(b)
}"""
SQUARE = "(float[N] x) => (float[N] y) { y = Mul(x, x) }"
X = np.array([1, 2], np.float32)


def test_the_gradient_of_a_scalar() -> None:
    found = onnxtrain.grad(proto(LOSS), wrt="x", outputs="l")({"x": X})
    assert list(found) == ["x"] and isinstance(found["x"], np.ndarray)
    assert found["x"].tolist() == [18, 64]


def test_feeds_may_be_named_and_xs_many() -> None:
    gradients = onnxtrain.grad(proto(LOSS), wrt=["w", "x", "w"], outputs=["l"])
    found = gradients(x=X)
    assert {name: value.tolist() for name, value in found.items()} == {
        "w": [6, 32],
        "x": [18, 64],
    }
    assert [value.name for value in gradients.model.graph.output][-2:] == ["w_grad", "x_grad"]


def test_tensors_in_tensors_out() -> None:
    found = onnxtrain.grad(proto(LOSS), wrt="x", outputs="l")({"x": torch.tensor([1.0, 2.0])})
    assert isinstance(found["x"], torch.Tensor) and found["x"].tolist() == [18, 64]


def test_outputs_of_many_elements_take_their_gradient() -> None:
    gradients = onnxtrain.grad(proto(SQUARE), wrt="x")
    assert gradients(x=X, y_grad=np.array([1, 10], np.float32))["x"].tolist() == [2, 40]
    with pytest.raises(FeedError, match=r"'y_grad' is missing: its output has the shape \['N'\]"):
        gradients(x=X)


def test_an_output_of_unknown_shape_takes_its_gradient() -> None:
    text = "(float[2] x, int64[r] s) => (float y) { a = Mul(x, x)  y = Reshape(a, s) }"
    given = proto(text)
    given.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(FeedError, match="its output has an unknown shape"):
        onnxtrain.grad(given, wrt="x")(x=X, s=np.array([2, 1]))


def test_all_outputs_count_by_default() -> None:
    gradients = onnxtrain.grad(proto(LOSS), wrt="x")
    with pytest.raises(FeedError, match="the gradient 'b_grad' is missing"):
        gradients(x=X)
    found = gradients(x=X, b_grad=np.array([1, 1], np.float32))
    assert found["x"].tolist() == [36, 128]
    scaled = {"l_grad": np.float32(0), "b_grad": np.array([1, 1], np.float32)}
    assert gradients(scaled, x=X)["x"].tolist() == [18, 64]


def test_a_gradient_in_double_and_shape_one() -> None:
    text = "(double[2] x) => (double[1] y) { a = Mul(x, x)  y = ReduceSum(a) }"
    found = onnxtrain.grad(proto(text), wrt="x")(x=X.astype(np.float64))["x"]
    assert found.dtype == np.float64 and found.tolist() == [2, 4]


def test_the_gradient_of_a_gradient() -> None:
    first = onnxtrain.grad(proto("(float x) => (float y) { a = Mul(x, x)  y = Mul(a, x) }"), "x")
    feeds = {"x": np.float32(2), "y_grad": np.float32(1)}
    assert first(feeds)["x"] == 12
    assert onnxtrain.grad(first.model, "x", "x_grad")(feeds)["x"] == 12
    assert onnxtrain.grad(first.model, "y_grad", "x_grad")(feeds)["y_grad"] == 12


def test_what_cannot_be_differentiated_is_refused() -> None:
    with pytest.raises(ParameterError, match="no value 'z'"):
        onnxtrain.grad(proto(SQUARE), wrt="z")
    with pytest.raises(GraphError, match="no value 'z'"):
        onnxtrain.grad(proto(SQUARE), wrt="x", outputs="z")
    ints = "(float[2] x) => (int64[2] y) { y = Cast<to=7>(x) }"
    with pytest.raises(GraphError, match="no floating point output to differentiate"):
        onnxtrain.grad(proto(ints), wrt="x")
