import onnx
import onnx_ir as ir
import pytest

from graph.text import model, values
from onnxtrain.errors import GraphError
from onnxtrain.graph.prepare import complete, prepare
from onnxtrain.types import DataType


def test_constants_become_initializers() -> None:
    of = prepare(
        model(
            "(float[2,3] x) => (float[3,2] y) "
            "{ s = Constant <value_ints = [3, 2]> ()  y = Reshape(x, s) }"
        )
    )
    assert [node.op_type for node in of.graph] == ["Reshape"]
    assert of.graph.initializers["s"].const_value.numpy().tolist() == [3, 2]


def test_functions_are_inlined() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
    main (float[2] x) => (float[2] y) { y = own.Twice(x) }
    <domain: "own", opset_import: ["": 21]>
    Twice (a) => (c) { b = Neg(a)  c = Add(a, a) }"""
    of = prepare(ir.from_proto(onnx.parser.parse_model(text)))
    assert "Add" in [node.op_type for node in of.graph]
    assert not [node for node in of.graph if node.domain == "own"]
    assert of.graph.outputs[0].dtype == DataType.FLOAT


def test_every_node_gets_a_name_of_its_own() -> None:
    of = model("(float[2] x) => (float[2] z) { y = Neg(x)  w = Neg(y)  z = Neg(w) }")
    of.graph[0].name = "Neg_w"
    prepare(of)
    assert [node.name for node in of.graph] == ["Neg_w", "Neg_w_2", "Neg_z"]


def test_types_are_inferred() -> None:
    of = prepare(model("(float[N] x) => (float[N] z) { y = Neg(x)  z = Abs(y) }"))
    assert values(of)["y"].dtype == DataType.FLOAT


def test_a_broken_graph_is_refused() -> None:
    of = model("(float[2] x) => (float[2] z) { y = Neg(x)  z = Abs(y) }")
    of.graph[1].outputs[0].name = "y"
    with pytest.raises(GraphError, match="two definitions"):
        prepare(of)


def test_what_was_added_to_a_prepared_model_is_completed() -> None:
    of = prepare(model("(float[N,3] x) => (float[N,3] y) { y = Neg(x) }"))
    one = ir.node("Constant", [], {"value": ir.tensor([2.0], DataType.FLOAT)})
    one.outputs[0].name = "one"
    product = ir.node("Mul", [of.graph.outputs[0], one.outputs[0]])
    product.outputs[0].name = "z"
    of.graph.extend([one, product])
    complete(of)
    assert [node.op_type for node in of.graph] == ["Neg", "Mul"] and product.name
    assert str(values(of)["z"].shape) == "[N,3]" and "one" in of.graph.initializers
