import onnx
import onnx_ir as ir
import pytest

from graph.text import model, proto
from onnxtrain.errors import GraphError
from onnxtrain.graph.verify import verify


def test_a_sound_model_passes() -> None:
    verify(model("(float[2] x) => (float[2] z) { y = Neg(x)  z = Add(x, y) }"))


def test_reading_before_definition_is_refused() -> None:
    of = model("(float[2] x) => (float[2] z) { y = Neg(x)  z = Abs(y) }")
    first, second = of.graph[0], of.graph[1]
    of.graph.remove(first)
    of.graph.insert_after(second, first)
    with pytest.raises(GraphError, match=r"\(Abs\) reads 'y', which no earlier node"):
        verify(of)


def test_an_undefined_input_is_refused() -> None:
    of = model("(float[2] x) => (float[2] y) { y = Neg(x) }")
    of.graph[0].replace_input_with(0, ir.Value(name="ghost"))
    with pytest.raises(GraphError, match="reads 'ghost'"):
        verify(of)


def test_two_definitions_are_refused() -> None:
    of = model("(float[2] x) => (float[2] z) { y = Neg(x)  z = Abs(y) }")
    of.graph[1].outputs[0].name = "y"
    with pytest.raises(GraphError, match="two definitions of 'y'"):
        verify(of)


def test_an_output_without_definition_is_refused() -> None:
    of = model("(float[2] x) => (float[2] y) { y = Neg(x) }")
    of.graph.outputs.append(ir.Value(name="w"))
    with pytest.raises(GraphError, match="output 'w' of graph 'main' is never defined"):
        verify(of)


def test_an_operator_of_a_domain_that_is_not_imported_is_refused() -> None:
    stored = proto("(float[2] x) => (float[2] y) { y = Neg(x) }")
    stored.graph.node[0].domain = "com.microsoft"
    with pytest.raises(GraphError, match=r"domain 'com\.microsoft', which the model does not"):
        verify(ir.from_proto(stored))


@pytest.mark.parametrize("version", [0, -1, 2**31])
def test_an_opset_that_cannot_be_is_refused(version: int) -> None:
    stored = proto("(float[2] x) => (float[2] y) { y = Neg(x) }")
    stored.opset_import[0].version = version
    with pytest.raises(GraphError, match=rf"imports opset {version} of 'ai\.onnx'\n  versions"):
        verify(ir.from_proto(stored))


def test_the_long_name_of_onnx_s_domain_is_known() -> None:
    stored = proto("(float[2] x) => (float[2] y) { y = Neg(x) }")
    stored.opset_import[0].domain = "ai.onnx"
    verify(ir.from_proto(stored))


IF = """(bool c, float[2] x) => (float[2] y) {
    y = If(c) <then_branch = then () => (float[2] a) { a = Neg(x) },
               else_branch = other () => (float[2] b) { b = Abs(x) }>
}"""


def test_subgraphs_see_outer_values() -> None:
    verify(model(IF))


def test_errors_inside_subgraphs_are_found() -> None:
    of = model(IF)
    inner = of.graph[0].attributes["then_branch"].as_graph()
    inner[0].replace_input_with(0, ir.Value(name="ghost"))
    with pytest.raises(GraphError, match="reads 'ghost'"):
        verify(of)


def test_onnx_s_own_checker_agrees_on_sound_models() -> None:
    onnx.checker.check_model(proto(IF))
