from __future__ import annotations

import re
from typing import Any

import pytest
from onnx import TensorProto, helper

from onnxtrain import onnxblock
from onnxtrain.onnxblock import edit


def test_names_count_on_through_the_process(echo: Any) -> None:
    names = []
    for _ in range(2):
        with onnxblock.base(echo(y=(2,))):
            names.append(onnxblock.blocks.Abs()("y"))
    numbers = [int(re.fullmatch(r"onnx::abs_output::(\d+)", name)[1]) for name in names]
    assert numbers[0] < numbers[1]


def test_nodes_are_named_after_their_operator(echo: Any) -> None:
    with onnxblock.base(echo(y=(2,))) as accessor:
        onnxblock.blocks.Abs()("y")
        assert re.fullmatch(r"onnx::Abs::\d+", accessor.model.graph.node[-1].name)


def test_names_of_the_model_are_not_used_again(echo: Any) -> None:
    model = echo(y=(2,))
    last = int(edit.generate_name("abs_output").split("::")[2])
    taken = [f"onnx::abs_output::{last + 1}", f"onnx::abs_output::{last + 7}"]
    model.graph.node.append(helper.make_node("Abs", ["y"], [taken[0]]))
    model.graph.node.append(helper.make_node("Abs", ["y"], ["other"], name=taken[1]))
    with onnxblock.base(model):
        assert edit.generate_name("abs_output") == f"onnx::abs_output::{last + 8}"


def test_names_in_bodies_are_not_used_again(echo: Any) -> None:
    model = echo(y=(2,))
    last = int(edit.generate_name("inner").split("::")[2])
    body = helper.make_graph(
        [helper.make_node("Abs", ["y"], [f"onnx::inner::{last + 3}/x"])], "body", [], []
    )
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=body))
    edit.reserve_names(model)
    assert edit.generate_name("inner") == f"onnx::inner::{last + 4}"


def test_domain_is_imported_once(echo: Any) -> None:
    model = echo(y=(2,))
    for _ in range(2):
        edit.add_node(model, "ReluGrad", ["y", "y"], ["z"], "com.microsoft")
    assert {o.domain: o.version for o in model.opset_import} == {"": 18, "com.microsoft": 1}
    assert len(model.opset_import) == 2


def test_version_the_model_imports_is_kept(echo: Any) -> None:
    model = echo(y=(2,))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    edit.add_node(model, "LabelEncoder", ["y"], ["z"], edit.ML)
    assert {o.domain: o.version for o in model.opset_import} == {"": 18, "ai.onnx.ml": 2}


def test_former_outputs_keep_their_types(perceptron: Any) -> None:
    edit.set_outputs(perceptron, ["a"])
    assert [value.name for value in perceptron.graph.output] == ["a"]
    inner = {value.name: value for value in perceptron.graph.value_info}
    assert set(inner) == {"h", "output"}
    assert inner["output"] == helper.make_tensor_value_info("output", 1, ["batch", 3])
    edit.set_outputs(perceptron, ["output", "a"])
    assert [value.name for value in perceptron.graph.output] == ["output", "a"]
    assert [value.name for value in perceptron.graph.value_info] == ["h"]


def test_output_of_unknown_type(echo: Any) -> None:
    model = echo(y=(2,))
    model.opset_import.append(helper.make_opsetid("custom", 1))
    model.graph.node.append(helper.make_node("Mystery", ["y"], ["z"], domain="custom"))
    with pytest.raises(LookupError, match=r"no value 'z' of a known type.*\n.*'y'"):
        edit.set_outputs(model, ["z"])
    assert [value.name for value in model.graph.output] == ["y"]
    edit.declare(model, helper.make_tensor_value_info("z", TensorProto.FLOAT, [2]))
    edit.set_outputs(model, ["z"])
    assert [value.name for value in model.graph.output] == ["z"]
