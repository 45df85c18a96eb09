"""Operators that ONNX took back give what their documentation said."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtrain.errors import GraphError
from onnxtrain.runtime.session import InferenceSession

X = np.random.default_rng(0).normal(size=(2, 3, 5, 6)).astype(np.float32)
BIAS = np.float32([1, 2, 3]).reshape(3, 1, 1)
Formula = Callable[[np.ndarray], np.ndarray]
ROWS: dict[str, tuple[str, dict[str, object], Formula]] = {
    "Affine": ("Affine", {"alpha": 2.0, "beta": 0.5}, lambda x: 2 * x + 0.5),
    "Affine, defaults": ("Affine", {}, lambda x: x),
    "ImageScaler": ("ImageScaler", {"scale": 0.5, "bias": [1.0, 2.0, 3.0]}, lambda x: x / 2 + BIAS),
    "Scale": ("Scale", {"scale": 3.0}, lambda x: 3 * x),
    "ScaledTanh": ("ScaledTanh", {"alpha": 1.5, "beta": 0.5}, lambda x: 1.5 * np.tanh(0.5 * x)),
    "ParametricSoftplus": (
        "ParametricSoftplus",
        {"alpha": 1.5, "beta": 0.5},
        lambda x: 1.5 * np.log1p(np.exp(0.5 * x)),
    ),
    "Crop": ("Crop", {"border": [1, 2, 0, 1]}, lambda x: x[:, :, 2:-1, 1:]),
    "Crop to a size": (
        "Crop",
        {"border": [1, 2, 0, 0], "scale": [2, 3]},
        lambda x: x[:, :, 2:4, 1:4],
    ),
}


def model_of(op: str, attributes: dict[str, object], opset: int) -> onnx.ModelProto:
    dtype = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["n"]), helper.make_node(op, ["n"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", dtype, ["N", 3, 5, 6])],
        [helper.make_tensor_value_info("y", dtype, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def normalized(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)


CHANGED: dict[str, tuple[str, dict[str, object], Formula]] = {
    "each channel": ("MeanVarianceNormalization", {}, lambda x: normalized(x, (0, 2, 3))),
    "all channels": (
        "MeanVarianceNormalization",
        {"across_channels": 1},
        lambda x: normalized(x, (0, 1, 2, 3)),
    ),
    "mean alone": (
        "MeanVarianceNormalization",
        {"normalize_variance": 0},
        lambda x: x - x.mean((0, 2, 3), keepdims=True),
    ),
    "threshold": ("ThresholdedRelu", {"alpha": 0.5}, lambda x: np.where(x > 0.5, x, 0)),
    "default threshold": ("ThresholdedRelu", {}, lambda x: np.where(x > 1, x, 0)),
}


"""Operators that ONNX adopted in another form, in opsets before that."""
EVERY = ROWS | CHANGED


@pytest.mark.parametrize(
    ("row", "opset"),
    [*itertools.product(ROWS, [6, 8, 13]), *itertools.product(CHANGED, [6, 8])],
)
def test_values(row: str, opset: int) -> None:
    op, attributes, formula = EVERY[row]
    session = InferenceSession(model_of(op, attributes, opset))
    (y,) = session.run(["y"], {"x": X})
    np.testing.assert_allclose(y, formula(-X), rtol=1e-6, atol=1e-6)


def slicing(opset: int) -> onnx.ModelProto:
    """A model that takes the places of a DynamicSlice as inputs."""
    model = model_of("DynamicSlice", {}, opset)
    places = ["starts", "ends", "axes"]
    model.graph.node[1].input.extend(places)
    model.graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.INT64, [2]) for name in places
    )
    return model


PLACES = {"starts": np.array([1, 0]), "ends": np.array([4, -1]), "axes": np.array([2, 3])}


@pytest.mark.parametrize("opset", [6, 9])
def test_slice_at_constant_places(opset: int) -> None:
    model = slicing(opset)
    del model.graph.input[1:]
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in PLACES.items())
    (y,) = InferenceSession(model).run(["y"], {"x": X})
    np.testing.assert_array_equal(y, -X[:, :, 1:4, :-1])


def test_slice_at_computed_places() -> None:
    (y,) = InferenceSession(slicing(10)).run(["y"], {"x": X, **PLACES})
    np.testing.assert_array_equal(y, -X[:, :, 1:4, :-1])
    with pytest.raises(GraphError, match=r"(?s)DynamicSlice.*computed.*opset 10"):
        InferenceSession(slicing(9))
