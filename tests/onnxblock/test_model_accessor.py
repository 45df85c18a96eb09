from __future__ import annotations

import pathlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from onnxtrain import onnxblock
from onnxtrain.onnxblock import model_accessor


def test_base_edits_a_copy(perceptron: Any) -> None:
    before = perceptron.SerializeToString(deterministic=True)
    with onnxblock.base(perceptron) as accessor:
        onnxblock.loss.MSELoss()("output")
        assert len(accessor.model.graph.node) == 6
    assert perceptron.SerializeToString(deterministic=True) == before


def test_path_is_handed_on(perceptron: Any) -> None:
    with onnxblock.base(perceptron, model_path="folder/model.onnx") as accessor:
        assert accessor.has_path
        assert accessor.path == "folder/model.onnx"


def test_path_that_was_not_given(perceptron: Any) -> None:
    with onnxblock.base(perceptron) as accessor:
        assert not accessor.has_path
        with pytest.raises(RuntimeError, match="path of the model is not known"):
            _ = accessor.path


def test_base_takes_models_only() -> None:
    with pytest.raises(TypeError, match="cannot edit a str"), onnxblock.base("m.onnx"):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(("given", "opset"), [(None, 21), (14, 14), (21, 21)])
def test_empty_model(given: int | None, opset: int) -> None:
    with onnxblock.empty_base(given) as accessor:
        model = accessor.model
    assert {o.domain: o.version for o in model.opset_import} == {"com.microsoft": 1, "": opset}
    assert model.ir_version == 10
    assert model.producer_name == "orttraining"
    assert not model.graph.node


def test_empty_model_of_a_newer_opset_has_the_ir_version_it_needs() -> None:
    with onnxblock.empty_base(23) as accessor:
        assert accessor.model.ir_version == 11


def _base(perceptron: Any) -> AbstractContextManager[Any]:
    return onnxblock.base(perceptron)


def _empty(perceptron: Any) -> AbstractContextManager[Any]:
    return onnxblock.empty_base()


@pytest.mark.parametrize("outer", [_base, _empty])
@pytest.mark.parametrize("inner", [_base, _empty])
def test_models_do_not_nest(
    outer: Callable[[Any], Any], inner: Callable[[Any], Any], perceptron: Any
) -> None:
    with (
        outer(perceptron) as accessor,
        pytest.raises(RuntimeError, match="another one is being edited"),
        inner(perceptron),
    ):
        pass
    assert accessor.model is not None
    with inner(perceptron):
        assert model_accessor.active() is not None


def test_an_error_closes_the_model(perceptron: Any) -> None:
    with pytest.raises(KeyError, match="stop"), onnxblock.base(perceptron):
        raise KeyError("stop")
    assert model_accessor.active() is None


def test_custom_op_library(tmp_path: pathlib.Path) -> None:
    library = tmp_path / "ops.so"
    library.touch()
    with onnxblock.empty_base(), onnxblock.custom_op_library(library):
        assert model_accessor.active_custom_op_library() == str(library)
        with (
            pytest.raises(RuntimeError, match="is open"),
            onnxblock.custom_op_library(library),
        ):
            pass
    assert model_accessor.active_custom_op_library() is None


def test_custom_op_library_that_is_missing(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(RuntimeError, match="there is no custom operator library"),
        onnxblock.custom_op_library(tmp_path / "ops.so"),
    ):
        pass
