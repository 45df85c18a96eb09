import onnx
import onnx_ir as ir
import pytest

from graph.text import model, values
from onnxtrain.errors import GraphError
from onnxtrain.graph.inference.infer import infer, infer_node
from onnxtrain.graph.inference.skeleton import SMALL
from onnxtrain.types import MS, DataType


def test_types_and_shapes_are_written_into_every_value() -> None:
    found = values(
        infer(model("(float[N,3] x) => (float[3,N] z) { y = Neg(x)  z = Transpose(y) }"))
    )
    assert found["y"].dtype == DataType.FLOAT and str(found["y"].shape) == "[N,3]"
    assert str(found["z"].shape) == "[3,N]"


def test_training_operators_are_known() -> None:
    of = model(
        "(float[2,3] dy, float[2,3] y) => (float[M,N] dx) "
        "{ dx = com.microsoft.SoftmaxGrad_13(dy, y) }",
        com_microsoft=1,
    )
    infer(of)
    assert str(values(of)["dx"].shape) == "[2,3]"


def test_shapes_computed_from_shapes_are_followed() -> None:
    of = model(
        "(float[N,4] x, float[N,2,2] v) => (float[A,B] z) "
        "{ s = Shape(x)  y = Reshape(v, s)  z = Neg(y) }"
    )
    assert str(values(infer(of))["y"].shape) == "[N,4]"


def test_large_initializers_are_spared_and_stay_in_order() -> None:
    big = ", ".join(["1"] * SMALL)
    of = model(
        f"(float[1] x) => (float[N] z) <float[{SMALL}] w = {{{big}}}, float[1] s = {{1}}> "
        "{ y = Add(x, w)  z = Add(y, s) }"
    )
    before = list(of.graph.initializers), list(of.graph.inputs)
    assert str(values(infer(of))["y"].shape) == f"[{SMALL}]"
    assert (list(of.graph.initializers), list(of.graph.inputs)) == before
    assert of.graph.initializers["w"].const_value is not None


def test_shapes_that_are_known_better_are_kept() -> None:
    of = model("(float[M] x, int64[1] s) => (float[3] y) { y = Reshape(x, s) }")
    assert str(values(infer(of))["y"].shape) == "[3]"


@pytest.mark.parametrize("opset", [18, 21])
def test_operators_without_inference_are_typed_by_their_schema(opset: int) -> None:
    of = model(
        "(double[N,4,3] x, double[4] s, double[4] b) => (double[A,B,C] z) "
        "{ y = GroupNormalization<num_groups=2>(x, s, b)  t = Transpose<perm=[2,1,0]>(y) "
        "z = Neg(t) }",
        opset,
    )
    found = values(infer(of))
    assert found["y"].dtype == DataType.DOUBLE and str(found["y"].shape) == "[N,4,3]"
    assert str(found["t"].shape) == "[3,4,N]"


def test_one_node_is_inferred_from_its_inputs() -> None:
    x = ir.Value(name="x", type=ir.TensorType(DataType.FLOAT), shape=ir.Shape(["N", 2]))
    node = ir.node("Shape", [x])
    node.outputs[0].name = "s"
    infer_node(node, {"": 21})
    assert node.outputs[0].dtype == DataType.INT64 and str(node.outputs[0].shape) == "[2]"


def test_unknown_inputs_leave_outputs_unknown() -> None:
    node = ir.node("Neg", [ir.Value(name="x")])
    node.outputs[0].name = "y"
    infer_node(node, {"": 21})
    assert node.outputs[0].type is None


def test_an_operator_that_the_opset_lacks_is_named() -> None:
    x = ir.Value(name="x", type=ir.TensorType(DataType.FLOAT), shape=ir.Shape([2]))
    node = ir.node("Sign", [x], name="n")
    with pytest.raises(GraphError, match="opset 7 has no operator Sign, which node 'n' needs"):
        infer_node(node, {"": 7})


def test_operators_of_unknown_domains_are_left_alone() -> None:
    node = ir.node("Whatever", [ir.Value(name="x")], domain="my.own")
    infer_node(node, {"": 21, "my.own": 1})
    node = ir.node("Whatever", [ir.Value(name="x")], domain=MS)
    infer_node(node, {"": 21, MS: 1})
    assert node.outputs[0].type is None


def test_wrong_types_of_one_node_are_refused() -> None:
    a = ir.Value(name="a", type=ir.TensorType(DataType.FLOAT), shape=ir.Shape([2]))
    b = ir.Value(name="b", type=ir.TensorType(DataType.FLOAT), shape=ir.Shape([3]))
    node = ir.node("Add", [a, b], name="n")
    node.outputs[0].name = "y"
    with pytest.raises(GraphError, match="types or shapes of node 'n' do not fit"):
        infer_node(node, {"": 21})


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """The models that ONNX's inference is given."""
    given = []
    own = onnx.shape_inference.infer_shapes

    def counted(proto: onnx.ModelProto, **options: object) -> onnx.ModelProto:
        given.append(proto)
        return own(proto, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", counted)
    return given


CHAIN = "(float[N,3] x) => (float[N,3] z) <float[N,3] y> { y = Neg(x)  z = Abs(y) }"


def test_one_pass_is_enough_for_a_file_that_declares_what_is_right(passes: list) -> None:
    infer(model(CHAIN))
    assert len(passes) == 1


def test_what_only_the_file_knows_takes_a_second_pass(passes: list) -> None:
    of = infer(model("(float[M] x, int64[1] s) => (float[3] z) { y = Reshape(x, s) z = Neg(y) }"))
    assert len(passes) == 2 and str(values(of)["z"].shape) == "[3]"


def test_a_model_that_is_known_already_takes_no_pass(passes: list) -> None:
    of = infer(model(CHAIN))
    infer(of.clone())
    assert len(passes) == 1


def test_added_nodes_are_inferred_alone(passes: list) -> None:
    of = infer(model(CHAIN))
    (y, z) = (node.outputs[0] for node in of.graph)
    added = ir.node("Concat", [y, z], {"axis": 1}, name="added")
    added.outputs[0].name = "w"
    of.graph.append(added)
    infer(of)
    assert len(passes) == 1 and str(added.outputs[0].shape) == "[N,6]"


def test_an_input_of_another_size_is_followed(passes: list) -> None:
    of = infer(model("(float[N,3] x) => (float[A,B] z) { y = Neg(x)  z = Transpose(y) }"))
    of.graph.inputs[0].shape = ir.Shape([5, 3])
    infer(of)
    assert len(passes) == 2 and str(values(of)["z"].shape) == "[3,5]"


def test_outputs_keep_the_names_of_sizes_that_the_file_gives_them() -> None:
    found = values(infer(model("(float[N,3] x) => (float[A,B] z) { y = Neg(x)  z = Abs(y) }")))
    assert str(found["y"].shape) == "[N,3]" and str(found["z"].shape) == "[A,3]"


def test_equal_nodes_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ir.Value(name="x", type=ir.TensorType(DataType.FLOAT), shape=ir.Shape(["once", 7]))
    nodes = [ir.node("Transpose", [x], {"perm": [1, 0]}, name=name) for name in "ab"]
    for node in nodes:
        node.outputs[0].name = f"{node.name}_out"
    infer_node(nodes[0], {"": 21})
    monkeypatch.setattr(onnx.shape_inference, "infer_node_outputs", lambda *_, **__: 1 / 0)
    infer_node(nodes[1], {"": 21})
    assert str(nodes[1].outputs[0].shape) == "[7,once]"
    other = ir.node("Transpose", [x], {"perm": [0, 1]}, name="c")
    other.outputs[0].name = "c_out"
    with pytest.raises(ZeroDivisionError):
        infer_node(other, {"": 21})
