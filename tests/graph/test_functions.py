"""Functions of models and of schemas, inlined."""

from collections.abc import Iterable

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnx_ir as ir
import pytest

from graph.text import model, values
from onnxtrain.errors import GraphError
from onnxtrain.graph.functions import expand_functions
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.library import default_registry
from onnxtrain.kernels.registry import KernelRegistry
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import DataType

X = np.array([1.0, -2.0, 4.0], np.float32)


def with_functions(main: str, *functions: str, opset: int = 21) -> onnx.ModelProto:
    header = f'<ir_version: 10, opset_import: ["": {opset}, "own": 1]> main '
    return onnx.parser.parse_model("\n".join([header + main, *functions]))


def ops(of: ir.Model) -> list[str]:
    return [node.op_type for node in of.graph.all_nodes()]


def ran(proto: onnx.ModelProto, **feeds: np.ndarray) -> np.ndarray:
    """The first output, which ONNX's reference must give as well."""
    (found, *_) = InferenceSession(proto).run(None, feeds)
    expected = onnx.reference.ReferenceEvaluator(proto).run(None, feeds)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    return found


TWICE = '<domain: "own", opset_import: ["": 21]> Twice (a) => (b) { b = Add(a, a) }'


def test_functions_may_call_functions() -> None:
    four = (
        '<domain: "own", opset_import: ["": 21, "own": 1]> Four (a) => (c) '
        "{ b = own.Twice(a)  c = own.Twice(b) }"
    )
    proto = with_functions("(float[3] x) => (float[3] y) { y = own.Four(x) }", TWICE, four)
    np.testing.assert_array_equal(ran(proto, x=X), 4 * X)
    assert ops(prepare(ir.from_proto(proto))) == ["Add", "Add"]


@pytest.mark.parametrize(("call", "axis"), [("<axis = 0>", 0), ("", 1)])
def test_attributes_are_passed_and_have_defaults(call: str, axis: int) -> None:
    function = (
        '<domain: "own", opset_import: ["": 21]> Soft <axis: int = 1> (a) => (b) '
        "{ b = Softmax <axis: int = @axis> (a) }"
    )
    main = f"(float[2,3] x) => (float[2,3] y) {{ y = own.Soft {call} (x) }}"
    (y,) = InferenceSession(with_functions(main, function)).run(None, {"x": np.stack([X, X])})
    np.testing.assert_allclose(y.sum(axis), 1, rtol=1e-6)


def test_a_function_may_be_called_in_a_branch() -> None:
    proto = with_functions(
        """(bool c, float[3] x) => (float[3] y) {
          y = If (c) <then_branch = t () => (float[3] p) { p = own.Twice(x) },
                      else_branch = e () => (float[3] q) { q = Neg(x) }> }""",
        TWICE,
    )
    np.testing.assert_array_equal(ran(proto, c=np.array(True), x=X), 2 * X)
    np.testing.assert_array_equal(ran(proto, c=np.array(False), x=X), -X)


def test_a_function_may_be_written_in_another_opset() -> None:
    older = TWICE.replace('"": 21', '"": 15')
    proto = with_functions("(float[3] x) => (float[3] y) { y = own.Twice(x) }", older)
    np.testing.assert_array_equal(ran(proto, x=X), 2 * X)


def test_operators_that_changed_are_converted() -> None:
    older = (
        '<domain: "own", opset_import: ["": 12]> Flat (a) => (b) { b = Squeeze <axes = [0]> (a) }'
    )
    proto = with_functions("(float[1,3] x) => (float[3] y) { y = own.Flat(x) }", older)
    (y,) = InferenceSession(proto).run(None, {"x": X[None]})
    np.testing.assert_array_equal(y, X)


def test_what_cannot_be_converted_is_refused() -> None:
    newer = '<domain: "own", opset_import: ["": 21]> New (a) => (b) { b = Gelu(a) }'
    proto = with_functions("(float[3] x) => (float[3] y) { y = own.New(x) }", newer, opset=13)
    with pytest.raises(GraphError, match="cannot inline the functions"):
        prepare(ir.from_proto(proto))


def test_a_function_that_calls_itself_is_refused() -> None:
    endless = (
        '<domain: "own", opset_import: ["": 21, "own": 1]> Round (a) => (b) { b = own.Round(a) }'
    )
    proto = with_functions("(float[3] x) => (float[3] y) { y = own.Round(x) }", endless)
    with pytest.raises(GraphError, match="cannot inline the functions"):
        prepare(ir.from_proto(proto))


def expanded(text: str, without: Iterable[str], opset: int = 21) -> ir.Model:
    lacking = set(without)
    return expand_functions(prepare(model(text, opset)), lambda node: node.op_type not in lacking)


def test_a_node_without_a_kernel_becomes_its_body() -> None:
    of = expanded("(float[3] x) => (float[3] y) { y = HardSwish(x) }", ["HardSwish"])
    assert ops(of) == ["HardSigmoid", "Mul"]
    assert [value.name for value in of.graph.outputs] == ["y"]
    assert of.graph.outputs[0].dtype == DataType.FLOAT


def test_bodies_are_expanded_as_deep_as_needed() -> None:
    lacking = ["HardSwish", "HardSigmoid", "Clip"]
    found = ops(expanded("(float[3] x) => (float[3] y) { y = HardSwish(x) }", lacking))
    assert found and not set(found) & set(lacking)


def test_default_attributes_reach_the_body() -> None:
    of = expanded("(float[3] x) => (float[3] y) { y = Elu(x) }", ["Elu"])
    y = onnx.reference.ReferenceEvaluator(ir.to_proto(of)).run(None, {"x": X})[0]
    np.testing.assert_allclose(y, np.where(X < 0, np.exp(X) - 1, X), rtol=1e-6)


def test_a_body_may_depend_on_types_and_on_outputs() -> None:
    text = "(float[2,3] x, float[3] s) => (float[2,3] y) { y = LayerNormalization(x, s) }"
    of = expanded(text, ["LayerNormalization"])
    assert "LayerNormalization" not in ops(of)
    assert values(of)["y"].dtype == DataType.FLOAT


def test_bodies_inside_subgraphs_are_expanded() -> None:
    text = """(bool c, float[3] x) => (float[3] y) {
      y = If (c) <then_branch = t () => (float[3] p) { p = HardSwish(x) },
                  else_branch = e () => (float[3] q) { q = HardSwish(x) }> }"""
    assert "HardSwish" not in ops(expanded(text, ["HardSwish"]))


def test_two_bodies_keep_their_names_apart() -> None:
    of = expanded(
        "(float[3] x) => (float[3] z) { y = HardSwish(x)  z = HardSwish(y) }", ["HardSwish"]
    )
    names = [value.name for node in of.graph for value in node.outputs]
    assert len(set(names)) == len(names) == 4


def test_a_node_without_a_body_stays() -> None:
    assert ops(expanded("(float[3] x) => (float[3] y) { y = Neg(x) }", ["Neg"])) == ["Neg"]


def test_sessions_use_bodies_where_their_registry_has_no_kernel() -> None:
    lacking = ("HardSwish", "HardSigmoid")
    kernels = [k for k in default_registry().kernels() if k.op not in lacking]
    text = "(float[3] x) => (float[3] y) { y = HardSwish(x) }"
    proto = ir.to_proto(model(text))
    (y,) = InferenceSession(proto, registry=KernelRegistry(kernels)).run(None, {"x": X})
    np.testing.assert_allclose(y, X * np.clip(X / 6 + 0.5, 0, 1), rtol=1e-6)


PASSING = {
    "(a) => (a, b) { b = Neg(a) }": "y, z = own.F(x)",
    "(a) => (b, b) { b = Neg(a) }": "y, z = own.F(x)",
    "(a) => (a) { }": "y = own.F(x)  z = own.F(y)",
    "(a) => (b, a, b) { b = Neg(a) }": "y, z = own.F(x)",
    "(a) => (b, c) { b = Neg(a)  c = Exp(b) }": "y = own.F(x)  z = own.F(y)",
    "(a) => (b, c) { b = Neg(a)  c = Abs(b) }": '"", y = own.F(x)  z = own.F(y)',
}


@pytest.mark.parametrize("body", PASSING)
def test_outputs_may_be_inputs_or_twice_the_same_or_left_out(body: str) -> None:
    function = f'<domain: "own", opset_import: ["": 21]> F {body}'
    main = f"(float[3] x) => (float[3] y, float[3] z) {{ {PASSING[body]} }}"
    proto = with_functions(main, function)
    found = InferenceSession(proto).run(None, {"x": X})
    expected = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": X})
    np.testing.assert_array_equal(found, expected)
