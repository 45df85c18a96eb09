"""Gradients and accumulation one after the other, as programs for onnxruntime-training do it."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest

from onnxtrain import InferenceSession, onnxblock
from onnxtrain.api import CheckpointState, Module
from onnxtrain.errors import OptionError, ParameterError
from onnxtrain.onnxblock import _training_graph_utils as utils
from onnxtrain.onnxblock import model_accessor
from training.small import model_of, normal

X = normal(5, 4, seed=3)
W, B = normal(4, 3, seed=1), normal(3, seed=2)


def loss_model() -> onnx.ModelProto:
    nodes = "h = Gemm(x, w, b) y = Tanh(h) l = ReduceMean<keepdims=0>(y)"
    body = f"(float[N,4] x) => (float l) {{ {nodes} }}"
    return model_of(body, {"w": W, "b": B})


def names(values) -> list[str]:
    return [value.name for value in values]


def gradient_of_w() -> np.ndarray:
    """In float64, by hand: the mean of tanh(xw + b)."""
    slope = 1 - np.tanh(X.astype(float) @ W + B) ** 2
    return X.T.astype(float) @ slope / slope.size


def test_gradients_are_outputs():
    model = loss_model()
    made, evaluation = utils.build_gradient_graph(model, {"w"}, {"b"}, "l")
    assert names(model.graph.input) == ["x", "w", "b"] and not model.graph.initializer
    assert names(made.graph.input) == names(evaluation.graph.input) == ["x", "w", "b"]
    assert names(made.graph.output) == ["l", "w_grad"]
    assert names(evaluation.graph.output) == ["l"]
    (grad,) = InferenceSession(made).run(["w_grad"], {"x": X, "w": W, "b": B})
    np.testing.assert_allclose(grad, gradient_of_w(), rtol=1e-5, atol=1e-7)


def test_what_is_not_named_stays_a_constant():
    model = loss_model()
    made, _ = utils.build_gradient_graph(model, ["w"], [], ["l", "y"])
    assert names(model.graph.input) == ["x", "w"] and names(model.graph.initializer) == ["b"]
    assert names(made.graph.output) == ["l", "y", "w_grad"]


def test_accumulation_makes_a_training_model(tmp_path: pathlib.Path):
    model = loss_model()
    parameters = utils.get_model_parameters(model, {"w"}, {"b", "other"})
    assert [names(tensors) for tensors in parameters] == [["w"], ["b"]]
    made, evaluation = utils.build_gradient_graph(model, {"w"}, {"b"}, ["l"])
    utils.build_gradient_accumulation_graph(made, {"w"})
    assert names(made.graph.input)[3:] == ["w_grad.accumulation.buffer", "lazy_reset_grad"]
    assert names(made.graph.output) == ["l", "w_grad.accumulation.out"]
    assert made.graph.node[-1].name == "GradientAccumulator1"
    onnxblock.save_checkpoint(parameters, tmp_path / "checkpoint")
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(made, state, evaluation)
    module(X)
    module(X)
    np.testing.assert_allclose(
        state.parameters["w"].grad, 2 * gradient_of_w(), rtol=1e-5, atol=1e-7
    )


def test_gradients_that_are_not_given_out_are_refused():
    made, _ = utils.build_gradient_graph(loss_model(), {"w"}, {"b"}, ["l"])
    with pytest.raises(ParameterError, match="gives no gradient of 'b' out\n  have  w"):
        utils.build_gradient_accumulation_graph(made, {"w", "b"})
    with pytest.raises(OptionError, match="custom_op_library is not available"):
        utils.build_gradient_graph(loss_model(), {"w"}, {"b"}, ["l"], "ops.so")


def test_modules_are_found_without_being_imported():
    assert onnxblock._training_graph_utils is utils
    assert onnxblock._graph_utils.generate_graph_name("a").startswith("onnx::a::")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = onnxblock.nothing


def test_the_open_model_is_found_by_the_reference_s_name():
    assert model_accessor._GLOBAL_ACCESSOR is None
    with onnxblock.base(loss_model()) as accessor:
        assert model_accessor._GLOBAL_ACCESSOR is accessor
    assert model_accessor._GLOBAL_ACCESSOR is None
    assert model_accessor._GLOBAL_CUSTOM_OP_LIBRARY is None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = model_accessor.nothing
