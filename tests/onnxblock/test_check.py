from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtrain.onnxblock import check


def matmul(weight: onnx.TensorProto) -> onnx.ModelProto:
    rows = weight.dims[0]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", weight.dims[1]])],
        [weight],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def large() -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones((32, 32), np.float32), "w")


def test_valid_model_with_large_weights() -> None:
    check.check(matmul(large()))


def test_weights_do_not_pass_through_the_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(
        onnx.checker, "check_model", lambda model, full_check: sizes.append(model.ByteSize())
    )
    check.check(matmul(large()))
    assert sizes[0] < large().ByteSize()


def test_contradiction_of_a_large_weight_is_found() -> None:
    model = matmul(large())
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 31
    with pytest.raises(onnx.shape_inference.InferenceError):
        check.check(model)


def test_damaged_small_constant_is_found() -> None:
    weight = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    weight.raw_data = weight.raw_data[:-1]
    with pytest.raises(onnx.checker.ValidationError, match="raw_data"):
        check.check(matmul(weight))


def test_weights_in_another_file_are_not_needed() -> None:
    weight = large()
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights.bin")
    check.check(matmul(weight))


def test_weight_that_is_an_input_too() -> None:
    model = matmul(large())
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [32, 32]))
    check.check(model)
    inputs = [value.name for value in check.infer_types(model).graph.input]
    assert inputs == ["x", "w"]


def test_inference_uses_small_constants_and_training_operators() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["x", "shape"], ["y"]),
            helper.make_node("ReluGrad", ["y", "y"], ["z"], domain="com.microsoft"),
        ],
        "reshape",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([2, 3]), "shape")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    inferred = check.infer_types(model)
    assert inferred.graph.output[0] == helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 3])
