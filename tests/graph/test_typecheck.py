import pytest

from graph.text import model
from onnxtrain.errors import GraphError
from onnxtrain.graph.inference.infer import infer
from onnxtrain.graph.typecheck import check_types


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "(float[2] x, int64[2] k) => (float[2] y) { y = Add(x, k) }",
            r"\(ai.onnx::Add\): 'k' for B is tensor\(int64\), but it must be tensor\(float\) "
            "like 'x' for A",
        ),
        (
            "(float[2] x, int32[1] s) => (float[A] y) { y = Reshape(x, s) }",
            r"'s' for shape is tensor\(int32\), but it must be tensor\(int64\)",
        ),
        (
            "(float[2] x, double[2] z) => (float[4] y) { y = Concat<axis=0>(x, z) }",
            r"'z' for inputs is tensor\(double\)",
        ),
        ("(float[2] x) => (float[2] y) { y = Add(x) }", "has 1 inputs, but it takes 2"),
        ("(float[2] x) => (float[2] y) { y, z = Neg(x) }", "has 2 outputs, but it takes 1"),
    ],
)
def test_nodes_that_contradict_their_schema_are_named(text: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        check_types(model(text))


@pytest.mark.parametrize(
    "text",
    [
        "(float[2] x, int64[1] k) => (float[1] v) { v, i = TopK(x, k) }",
        "(bool c, float[2] x, int64[2] k) => (float[2] y) { y = If(c) <"
        "then_branch = a () => (float[2] p) { p = Neg(x) }, "
        "else_branch = b () => (float[2] q) { q = Abs(x) }> }",
        "(seq(float[N]) s, int64 i) => (float[M] y) { y = SequenceAt(s, i) }",
        "(float[2,3] x, float[3] s) => (float[2,3] y) { y = LayerNormalization(x, s) }",
    ],
)
def test_sound_nodes_pass(text: str) -> None:
    infer(model(text))


def test_nodes_of_subgraphs_are_checked() -> None:
    of = model(
        "(bool c, float[2] x, int64[2] k) => (float[2] y) { y = If(c) <"
        "then_branch = a () => (float[2] p) { p = Add(x, k) }, "
        "else_branch = b () => (float[2] q) { q = Abs(x) }> }"
    )
    with pytest.raises(GraphError, match="'k' for B"):
        check_types(of)


def test_a_node_that_differs_from_sound_ones_in_its_types_alone_is_named() -> None:
    of = model(
        "(float[2] x, int64[2] k) => (float[2] y) { a = Add(x, x)  b = Add(k, k)  y = Add(a, b) }"
    )
    for node in of.graph:
        first = node.inputs[0]
        assert first is not None
        node.outputs[0].type = first.type
    with pytest.raises(GraphError, match="'b' for B is tensor\\(int64\\)"):
        check_types(of)
