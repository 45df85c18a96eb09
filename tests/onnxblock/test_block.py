from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxtrain import onnxblock


class Twice(onnxblock.Block):
    """Written as users do: without calling the constructor of Block."""

    def __init__(self) -> None:
        self.add = onnxblock.blocks.Add()

    def build(self, name: str) -> str:
        return str(self.add(name, name))


class ByHand(onnxblock.Block):
    """Adds its own node to the model."""

    def build(self, name: str, output: str = "by_hand") -> str:
        self.base.graph.node.append(helper.make_node("Tanh", [name], [output]))
        return output


def test_block_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        onnxblock.Block()  # type: ignore[abstract]


def test_blocks_compose(echo: Any, forward: Any, run: Any) -> None:
    model = forward(echo(y=(2,)), lambda y: Twice()(Twice()(y)), "y")
    (value,) = run(model, np.array([1, 2], np.float32))
    np.testing.assert_array_equal(value, [4, 8])


def test_base_is_the_model_being_edited(echo: Any) -> None:
    block = ByHand()
    with onnxblock.base(echo(y=(2,))) as accessor:
        assert block("y") == "by_hand"
        assert block.base is accessor.model
    assert block.base is accessor.model
    with onnxblock.base(echo(y=(2,))) as other:
        assert block.base is other.model


@pytest.mark.parametrize("name", ["scratch.onnx", None])
def test_constructor_takes_the_file_name_of_the_reference(name: str | None) -> None:
    assert isinstance(ByHand(name), onnxblock.Block)


def test_outside_of_a_context() -> None:
    with pytest.raises(RuntimeError, match="cannot build Twice: no model is being edited"):
        Twice()("y")
    with pytest.raises(RuntimeError, match=r"with onnxblock\.base\(model\)"):
        _ = ByHand().base


def test_model_is_checked(echo: Any) -> None:
    with (
        onnxblock.base(echo(y=(2,))),
        pytest.raises(onnx.checker.ValidationError, match="nowhere"),
    ):
        onnxblock.blocks.Add()("y", "nowhere")


def test_types_are_checked(echo: Any) -> None:
    with (
        onnxblock.base(echo(y=(2,), z=(3,))),
        pytest.raises(onnx.shape_inference.InferenceError, match="Incompatible dimensions"),
    ):
        onnxblock.blocks.Add()("y", "z")


def test_model_is_checked_once_per_outermost_block(
    echo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    monkeypatch.setattr("onnxtrain.onnxblock.block.check", checked.append)
    with onnxblock.base(echo(y=(2,))) as accessor:
        onnxblock.loss.BCEWithLogitsLoss()("y")
        assert checked == [accessor.model]
        Twice()("y")
    assert len(checked) == 2


def test_a_failed_block_does_not_stop_the_checks_of_the_next(echo: Any) -> None:
    class Fails(onnxblock.Block):
        def build(self) -> str:
            raise KeyError("stop")

    with onnxblock.base(echo(y=(2,))):
        with pytest.raises(KeyError):
            Fails()()
        with pytest.raises(onnx.checker.ValidationError):
            onnxblock.blocks.Abs()("nowhere")


def test_no_file_is_written(
    perceptron: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with onnxblock.base(perceptron, model_path="model.onnx"):
        onnxblock.loss.MSELoss()("output")
    assert list(tmp_path.iterdir()) == []


def test_infer_shapes_on_base(perceptron: Any) -> None:
    block = Twice()
    with onnxblock.base(perceptron) as accessor:
        twice = block("output")
        inferred = block.infer_shapes_on_base()
    assert not accessor.model.graph.value_info
    shapes = {v.name: v for v in inferred.graph.value_info}
    assert shapes[twice] == helper.make_tensor_value_info(twice, 1, ["batch", 3])
    assert inferred.graph.initializer == accessor.model.graph.initializer
