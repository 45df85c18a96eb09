"""What was added to a protobuf is added to the model; any other change is read anew."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graph.text import proto
from onnxtrain.graph.prepare import prepare
from onnxtrain.graph.verify import verify
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.transforms.graft import grafted

TEXT = """(float[n,2] x) => (float[n,2] y) <float[2] w = {2.0, 3.0}> {
  z = Mul(x, w)
  y = Relu(z)
}"""
FEEDS = {"x": np.float32([[1, -2], [3, 4]])}


def edited() -> tuple[ir.Model, onnx.ModelProto, onnx.ModelProto]:
    """A prepared model, its protobuf, and that with an input, a constant and two nodes more."""
    model = prepare(ir.from_proto(proto(TEXT)))
    before = ir.to_proto(model)
    after = onnx.ModelProto()
    after.CopyFrom(before)
    target = onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, ["n", 2])
    after.graph.input.append(target)
    after.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([5]), "five"))
    after.graph.node.append(onnx.helper.make_node("Sub", ["z", "t"], ["d"], name="sub"))
    after.graph.node.append(onnx.helper.make_node("Add", ["d", "five"], ["e"], name="add"))
    del after.graph.output[:]
    typed = onnx.TensorProto.FLOAT
    after.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, typed, ["n", 2]) for name in ("e", "y")
    )
    return model, before, after


def check_run(model: ir.Model, after: onnx.ModelProto) -> None:
    verify(model)
    feeds = {**FEEDS, "t": np.float32([[1, 1], [0, 2]])}
    expected = InferenceSession(after).run(None, feeds)
    found = InferenceSession(model).run(None, feeds)
    assert [value.name for value in model.graph.outputs] == ["e", "y"]
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, two)


def test_additions_go_to_the_model_itself() -> None:
    model, before, after = edited()
    own = next(iter(model.graph))
    result = grafted(model, before, after)
    assert result is model and next(iter(model.graph)) is own
    check_run(result, after)


def test_an_output_that_was_there_can_be_read() -> None:
    model, before, after = edited()
    after.graph.node[-1].input[1] = "y"
    check_run(grafted(model, before, after), after)


@pytest.mark.parametrize("change", ["node", "initializer", "input"])
def test_any_other_change_is_read_anew(change: str) -> None:
    model, before, after = edited()
    if change == "node":
        after.graph.node[0].op_type = "Add"
    elif change == "initializer":
        new = onnx.numpy_helper.from_array(np.float32([4, 4]), "w")
        after.graph.initializer[0].CopyFrom(new)
    else:
        after.graph.input.insert(0, after.graph.input.pop())
    result = grafted(model, before, after)
    assert result is not model
    check_run(result, after)
