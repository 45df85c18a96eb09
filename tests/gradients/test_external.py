"""Gradients declared as lists of nodes."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from graph.text import proto
from onnxtrain.errors import RegistrationError
from onnxtrain.gradients import build_gradient_graph, register_gradient, unregister_gradient
from onnxtrain.gradients.rules import find_rule
from onnxtrain.runtime.session import InferenceSession

ATEN = "org.pytorch.aten"
OWN = "own.domain"
OPERATORS = (("Square", OWN), ("Pair", OWN), ("ATen", ATEN))


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for name, domain in OPERATORS:
        unregister_gradient(domain, name)


def string(value: str) -> dict[str, object]:
    return {"value": value, "dtype": "string"}


def aten_model(operator: str, feeds: dict[str, np.ndarray], constants: dict[str, np.ndarray]):
    """y = operator(x, *constants), reduced to a loss."""
    call = helper.make_node(
        "ATen", ["x", *constants], ["y"], "call", domain=ATEN, operator=operator
    )
    nodes = [
        call,
        helper.make_node("Mul", ["y", "y"], ["z"], "square"),
        helper.make_node("ReduceSum", ["z"], ["l"], "sum", keepdims=0),
    ]
    kinds = {n: helper.np_dtype_to_tensor_dtype(v.dtype) for n, v in feeds.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kinds[n], v.shape) for n, v in feeds.items()],
        [helper.make_tensor_value_info("l", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
        value_info=[helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(ATEN, 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=imports)


def test_a_torch_operator_with_its_own_backward() -> None:
    @register_gradient(ATEN, "ATen", "embedding", "")
    def embedding():
        return [
            ("Constant", [], ["zero"], {"value": {"value": 0, "dtype": "int", "is_tensor": True}}),
            ("Shape", ["I(0)"], ["shape"]),
            ("Gather", ["shape", "zero"], ["rows"], {"axis": {"value": 0, "dtype": "int"}}),
            (
                ("ATen", ATEN),
                ["GO(0)", "I(1)", "rows", "I(2)", "I(3)", "I(4)"],
                ["GI(0)"],
                {"operator": string("embedding_backward"), "overload_name": string("")},
            ),
        ]

    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    constants = {
        "index": np.array([3, 1, 3], np.int64),
        "padding": np.array(1, np.int64),
        "scale": np.array(False),
        "sparse": np.array(False),
    }
    of = build_gradient_graph(aten_model("embedding", {"x": table}, constants), "x", loss="l")
    (found,) = InferenceSession(of).run(["x_grad"], {"x": table})
    leaf = torch.tensor(table, requires_grad=True)
    y = torch.nn.functional.embedding(torch.tensor([3, 1, 3]), leaf, padding_idx=1)
    (y * y).sum().backward()
    assert found.tolist() == leaf.grad.tolist()


def test_the_operator_of_torch_decides_which_definition_is_used() -> None:
    @register_gradient(ATEN, "ATen", "neg")
    def neg():
        return [("Neg", ["GO(0)"], ["GI(0)"])]

    @register_gradient(ATEN, "ATen", "exp")
    def exp():
        return [("Mul", ["GO(0)", "O(0)"], ["GI(0)"])]

    x = np.array([1, 2], np.float32)
    for operator, want in (("neg", 2 * x), ("exp", 2 * np.exp(2 * x))):
        of = build_gradient_graph(aten_model(operator, {"x": x}, {}), "x", loss="l")
        np.testing.assert_allclose(InferenceSession(of).run(["x_grad"], {"x": x})[0], want, 1e-6)


def test_torch_differentiates_its_own_operators() -> None:
    x = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4) ** 0.5
    size = np.array([2, 3], np.int64)
    of = build_gradient_graph(
        aten_model("_adaptive_avg_pool2d", {"x": x}, {"size": size}), "x", loss="l"
    )
    (found,) = InferenceSession(of).run(["x_grad"], {"x": x})
    leaf = torch.tensor(x, requires_grad=True)
    torch.nn.functional.adaptive_avg_pool2d(leaf, (2, 3)).square().sum().backward()
    np.testing.assert_allclose(found, leaf.grad.numpy(), rtol=1e-6)


def own(text: str):
    return proto(text, own_domain=1)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_element_types_follow_the_node(kind: str) -> None:
    @register_gradient(OWN, "Square")
    def square():
        one = {"value": {"value": [2], "dtype": "IElemType(0)", "is_tensor": True}}
        to = {"to": {"value": "IElemType(0)", "dtype": "int"}}
        return [
            ("Constant", [], ["two"], one),
            ("Cast", ["two"], ["same"], to),
            ("Mul", ["GO(0)", "I(0)"], ["half"]),
            ("Mul", ["half", "same"], ["GI(0)"]),
        ]

    text = f"({kind}[2] x) => ({kind}[2] y) {{ y = own.domain.Square(x) }}"
    of = build_gradient_graph(own(text), "x", "y")
    backward_nodes = list(of.graph.node)[1:]
    assert [node.op_type for node in backward_nodes] == ["Cast", "Mul", "Mul"]
    (constant,) = of.graph.initializer
    want = TensorProto.FLOAT if kind == "float" else TensorProto.DOUBLE
    assert constant.data_type == want
    assert backward_nodes[0].attribute[0].i == want


def test_an_output_without_a_gradient_counts_as_zero() -> None:
    @register_gradient(OWN, "Pair")
    def pair():
        return [("Sub", ["GO(0)", "GO(1)"], ["GI(0)"])]

    text = "(float[2] x) => (float[2] a, float[2] b) { a, b = own.domain.Pair(x) }"
    of = build_gradient_graph(own(text), "x", "b")
    ops = [node.op_type for node in list(of.graph.node)[1:]]
    assert ops == ["Expand", "Sub"]
    assert of.graph.node[-1].input[1] == "b_grad"
    (filled,) = [t for t in of.graph.initializer if t.name == of.graph.node[1].input[0]]
    assert not numpy_helper.to_array(filled).any()


def test_an_operator_with_a_rule_is_refused() -> None:
    with pytest.raises(RegistrationError, match=r"two gradient rules for ai\.onnx::Relu"):
        register_gradient("", "Relu")(lambda: [("Neg", ["GO(0)"], ["GI(0)"])])
    assert find_rule("", "Relu", 21).place.startswith("activation.py")


def test_a_second_definition_is_refused_until_the_first_is_forgotten() -> None:
    declare = register_gradient(OWN, "Square")
    declare(lambda: [("Neg", ["GO(0)"], ["GI(0)"])])
    with pytest.raises(
        RegistrationError, match=r"two gradient definitions for own\.domain::Square"
    ):
        declare(lambda: [("Abs", ["GO(0)"], ["GI(0)"])])
    unregister_gradient(OWN, "Square")
    assert find_rule(OWN, "Square", 1) is None
    declare(lambda: [("Abs", ["GO(0)"], ["GI(0)"])])
    assert find_rule(OWN, "Square", 1) is not None


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([("Neg", ["GO(0)"])], "a node of 2 parts"),
        ([("Neg", ["nothing"], ["GI(0)"])], "reads 'nothing' at Neg"),
        ([("Neg", ["GI(0)"], ["GI(0)"])], r"reads 'GI\(0\)' at Neg"),
        ([("Neg", ["GO(0)"], ["I(0)"])], r"cannot define 'I\(0\)'"),
        ([("Neg", ["GO(0)"], ["a"]), ("Neg", ["a"], ["a"])], "cannot define 'a'"),
        ([("Neg", ["GO(0)"], ["a"])], r"defines no GI\(i\)"),
        ([("Neg", ["GO(0)"], ["GI(0)"], {"k": {"value": 1, "dtype": "half"}})], "unknown dtype"),
    ],
)
def test_definitions_that_make_no_sense_are_refused(lines: list, message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        register_gradient(OWN, "Square")(lambda: lines)
    assert find_rule(OWN, "Square", 1) is None


def test_attributes_are_for_operators_that_are_many_in_one() -> None:
    with pytest.raises(RegistrationError, match=r"own\.domain::Square is told apart by"):
        register_gradient(OWN, "Square", "fast")
