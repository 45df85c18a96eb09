from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxtrain import onnxblock
from onnxtrain.errors import CheckpointError
from onnxtrain.formats import odtc


def split(model: onnx.ModelProto) -> Any:
    tensors = list(model.graph.initializer)
    return tensors[:3], tensors[3:]


def zeros_like(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        zeros = np.zeros_like(numpy_helper.to_array(tensor))
        tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))
    return copy


def test_parameters_are_written(perceptron: onnx.ModelProto, tmp_path: pathlib.Path) -> None:
    onnxblock.save_checkpoint(split(perceptron), tmp_path / "checkpoint")
    data = odtc.read_checkpoint(tmp_path / "checkpoint")
    assert list(data.trainable) == ["w1", "b1", "w2"]
    assert list(data.frozen) == ["b2"]
    assert not data.nominal
    for tensor in perceptron.graph.initializer:
        value = {**data.trainable, **data.frozen}[tensor.name]
        np.testing.assert_array_equal(value, numpy_helper.to_array(tensor))


def test_round_trip_into_a_model(perceptron: onnx.ModelProto, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "checkpoint")
    onnxblock.save_checkpoint(split(perceptron), path)
    model = zeros_like(perceptron)
    onnxblock.load_checkpoint_to_model(path, model)
    for tensor, expected in zip(model.graph.initializer, perceptron.graph.initializer, strict=True):
        assert tensor.name == expected.name
        np.testing.assert_array_equal(
            numpy_helper.to_array(tensor), numpy_helper.to_array(expected)
        )


def test_other_initializers_stay(perceptron: onnx.ModelProto, tmp_path: pathlib.Path) -> None:
    onnxblock.save_checkpoint((list(perceptron.graph.initializer)[:1], []), tmp_path / "checkpoint")
    model = zeros_like(perceptron)
    onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", model)
    changed = [t.name for t in model.graph.initializer if numpy_helper.to_array(t).any()]
    assert changed == ["w1"]


def test_nominal_checkpoint(perceptron: onnx.ModelProto, tmp_path: pathlib.Path) -> None:
    onnxblock.save_checkpoint(split(perceptron), tmp_path / "nominal", nominal_checkpoint=True)
    assert odtc.read_checkpoint(tmp_path / "nominal").nominal
    with pytest.raises(CheckpointError, match="is nominal"):
        onnxblock.load_checkpoint_to_model(tmp_path / "nominal", perceptron)


def test_parameter_of_another_shape(perceptron: onnx.ModelProto, tmp_path: pathlib.Path) -> None:
    onnxblock.save_checkpoint(split(perceptron), tmp_path / "checkpoint")
    model = zeros_like(perceptron)
    model.graph.initializer[2].CopyFrom(numpy_helper.from_array(np.zeros(3, np.float32), "w2"))
    before = model.SerializeToString(deterministic=True)
    with pytest.raises(CheckpointError, match="parameter 'w2'"):
        onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", model)
    assert model.SerializeToString(deterministic=True) == before


def test_parameters_may_be_any_two_collections(
    perceptron: onnx.ModelProto, tmp_path: pathlib.Path
) -> None:
    trainable, frozen = split(perceptron)
    given: Any = [iter(trainable), tuple(frozen)]
    onnxblock.save_checkpoint(given, tmp_path / "c")
    assert list(odtc.read_checkpoint(tmp_path / "c").trainable) == ["w1", "b1", "w2"]


def test_what_is_no_pair_of_lists_is_refused(
    perceptron: onnx.ModelProto, tmp_path: pathlib.Path
) -> None:
    tensors = list(perceptron.graph.initializer)
    for wrong in (tensors, tensors[:2], tensors[0], None, ([np.zeros(2)], [])):
        with pytest.raises(TypeError, match=r"(?s)no pair of lists.*give \(trainable, frozen\)"):
            onnxblock.save_checkpoint(wrong, tmp_path / "c")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_path_is_no_model(perceptron: onnx.ModelProto, tmp_path: pathlib.Path) -> None:
    onnxblock.save_checkpoint(split(perceptron), tmp_path / "c")
    with pytest.raises(TypeError, match=r"(?s)into a str.*onnx.load\(path\)"):
        onnxblock.load_checkpoint_to_model(tmp_path / "c", "model.onnx")  # type: ignore[arg-type]
