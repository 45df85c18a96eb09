"""The training graph of protobuf models."""

from __future__ import annotations

import onnx
import pytest
from onnx.helper import make_tensor_value_info

from onnxtrain.errors import LossError, ParameterError
from onnxtrain.transforms.protos import build_training_models
from training.small import model_of, normal


def forward() -> onnx.ModelProto:
    return model_of(
        """(float[N,4] x, int64[N] labels) => (float loss) {
            h = MatMul(x, w) y = Add(h, b) loss = SoftmaxCrossEntropyLoss(y, labels)
        }""",
        {"w": normal(4, 3), "b": normal(3)},
    )


def build(model: onnx.ModelProto, trainable=(), frozen=(), outputs=("loss",), loss="loss"):
    return build_training_models(
        model, trainable=trainable, frozen=frozen, loss_output=loss, output_names=outputs
    )


def inputs(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.input]


def test_named_parameters_become_inputs_and_others_stay_inside():
    training, evaluation = build(forward(), ["w"])
    assert inputs(evaluation) == ["x", "labels", "w"]
    assert [t.name for t in evaluation.graph.initializer] == ["b"]
    assert inputs(training) == [
        "x",
        "labels",
        "w",
        "w_grad.accumulation.buffer",
        "lazy_reset_grad",
    ]


def test_everything_becomes_an_input_if_nothing_is_named():
    _, evaluation = build(forward())
    assert inputs(evaluation) == ["x", "labels", "w", "b"]


def test_the_given_model_is_left_as_it_was():
    model = forward()
    before = model.SerializeToString()
    build(model, ["w"], ["b"])
    assert model.SerializeToString() == before


def test_parameters_come_last_although_an_old_model_lists_them_first():
    model = forward()
    model.ir_version = 3
    model.graph.input.insert(0, make_tensor_value_info("b", 1, [3]))
    model.graph.input.insert(0, make_tensor_value_info("w", 1, [4, 3]))
    training, evaluation = build(model, ["w"])
    assert inputs(evaluation) == ["x", "labels", "w"]
    assert inputs(training)[:3] == ["x", "labels", "w"]
    onnx.checker.check_model(evaluation)


def test_further_outputs_follow_the_loss():
    training, evaluation = build(forward(), ["w"], outputs=["loss", "y"])
    assert [v.name for v in evaluation.graph.output] == ["loss", "y"]
    assert [v.name for v in training.graph.output] == ["loss", "y", "w_grad.accumulation.out"]


def test_the_loss_comes_first():
    with pytest.raises(LossError, match="loss 'loss' must be the first output"):
        build(forward(), ["w"], outputs=["y", "loss"])
    with pytest.raises(LossError, match="must be the first output"):
        build(forward(), ["w"], outputs=[])


def test_unknown_parameters_are_named():
    with pytest.raises(ParameterError, match="no parameter 'u'"):
        build(forward(), ["u"])
