"""Blocks that were written for onnxruntime-training and edit their model by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import artifacts, onnxblock
from onnxtrain.api import CheckpointState, Module
from onnxtrain.onnxblock import _graph_utils, blocks, checkpoint, checkpoint_utils


class Overlap(onnxblock.Block):
    """``1 - 2 sum(y t) / (sum(y) + sum(t))``, with an input and constants of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = blocks.ReduceSum(keepdims=False)

    def build(self, output: str, target: str = "target") -> str:
        if not _graph_utils.node_arg_exists(self.base, target):
            value = copy.deepcopy(_graph_utils.get_output_from_output_name(self.base, output))
            value.name = target
            self.base.graph.input.append(value)
        one, two = (self.number(value) for value in (1.0, 2.0))
        common = blocks.Mul()(two, self.sum(blocks.Mul()(output, target)))
        whole = blocks.Add()(self.sum(output), self.sum(target))
        return str(blocks.Sub()(one, blocks.Div()(common, whole)))

    def number(self, value: float) -> str:
        name = _graph_utils.generate_graph_name("number")
        self.base.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, [], [value]))
        return name


def test_a_loss_with_an_input_and_constants_of_its_own(perceptron: Any, tmp_path: Any) -> None:
    names = [tensor.name for tensor in perceptron.graph.initializer]
    artifacts.generate_artifacts(
        perceptron,
        requires_grad=names,
        loss=Overlap(),
        artifact_directory=tmp_path,
        additional_output_names=["output"],
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    assert list(module.input_names())[1:] == ["target"]
    shape = [dim.dim_value or 5 for dim in perceptron.graph.input[0].type.tensor_type.shape.dim]
    x = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    target = np.eye(5, 3, dtype=np.float32)
    loss, output = module(x, target)
    expected = 1 - 2 * (output * target).sum() / (output.sum() + target.sum())
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_values_by_their_names(perceptron: Any) -> None:
    assert _graph_utils.get_output_from_output_name(perceptron, "output").name == "output"
    first = perceptron.graph.input[0].name
    assert _graph_utils.get_input_from_input_name(perceptron, first).name == first
    with pytest.raises(LookupError, match=r"no output 'lost'\n  have  'output'"):
        _graph_utils.get_output_from_output_name(perceptron, "lost")
    with pytest.raises(LookupError, match=f"no input 'lost'\n  have  '{first}'"):
        _graph_utils.get_input_from_input_name(perceptron, "lost")
    present = [first, "output", perceptron.graph.initializer[0].name, "lost"]
    assert [_graph_utils.node_arg_exists(perceptron, name) for name in present] == [1, 1, 1, 0]


def test_outputs_are_registered(perceptron: Any) -> None:
    _graph_utils.register_graph_outputs(perceptron, "a")
    assert [value.name for value in perceptron.graph.output] == ["a"]
    _graph_utils.register_graph_outputs(perceptron, ["output", "a"])
    assert [value.name for value in perceptron.graph.output] == ["output", "a"]


class RowSums(blocks._UnaryOp):
    def __init__(self) -> None:
        super().__init__("ReduceSum", keepdims=False)

    def build(self, name: str) -> str:
        axes = _graph_utils.generate_graph_name("axes")
        self.base.graph.initializer.append(numpy_helper.from_array(np.array([-1]), axes))
        output = _graph_utils.generate_graph_name(self._op_name)
        node = helper.make_node(self._op_name, [name, axes], [output], **self._attributes)
        self.base.graph.node.append(node)
        return output


def test_operators_by_their_names(echo: Any, forward: Any, run: Any) -> None:
    def build(y: str) -> Any:
        doubled = blocks._BinaryOp("Add")(y, y)
        return RowSums()(doubled), blocks._UnaryOp("Softmax", axis=0)(doubled)

    model = forward(echo(y=(2, 2)), build, "y")
    value = np.array([[0, 1], [0, 1]], np.float32)
    sums, softmax = run(model, value)
    np.testing.assert_array_equal(sums, [2, 2])
    np.testing.assert_array_equal(softmax, np.full((2, 2), 0.5))
    onnx.checker.check_model(model)


def test_checkpoint_utils_has_the_same_functions() -> None:
    for name in checkpoint_utils.__all__:
        assert getattr(checkpoint_utils, name) is getattr(checkpoint, name)
