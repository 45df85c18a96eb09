"""Equal nodes are shared, unless they are random or wanted; shapes are taken early."""

import onnx_ir as ir

from graph.text import model
from onnxtrain.graph.lean import measure_early, share_equal
from onnxtrain.graph.phase import Phase, mark, phase_of
from onnxtrain.graph.prepare import prepare

TWICE = """(float[2] x) => (float[2] y) {
    a = Neg(x)  b = Neg(x)  c = Transpose<perm=[0]>(x)  d = Transpose(x)
    r = RandomNormalLike(x)  s = RandomNormalLike(x)
    y = Sum(a, b, c, d, r, s)
}"""


def graph_of(text: str) -> ir.Graph:
    return prepare(model(text)).graph


def values(graph: ir.Graph) -> dict[str | None, ir.Value]:
    return {value.name: value for node in graph for value in node.outputs}


def inputs_of_sum(graph: ir.Graph) -> list[str | None]:
    return [value.name for value in graph[-1].inputs if value is not None]


def test_equal_nodes_become_one_and_random_ones_do_not() -> None:
    graph = graph_of(TWICE)
    share_equal(graph, set(graph), ())
    assert inputs_of_sum(graph) == ["a", "a", "c", "d", "r", "s"]
    assert "b" not in values(graph)


def test_values_that_are_kept_and_nodes_of_others_stay() -> None:
    graph = graph_of(TWICE)
    share_equal(graph, set(graph), {values(graph)["b"]})
    assert inputs_of_sum(graph)[:2] == ["a", "b"]
    share_equal(graph, {values(graph)["a"].producer()}, ())
    assert inputs_of_sum(graph)[:2] == ["a", "b"]


def test_results_of_shared_nodes_are_shared_in_turn() -> None:
    text = (
        "(float[2] x) => (float[2] y) { a = Neg(x) b = Neg(x) c = Exp(a) d = Exp(b) y = Add(c, d) }"
    )
    graph = graph_of(text)
    share_equal(graph, set(graph), ())
    assert [node.op_type for node in graph] == ["Neg", "Exp", "Add"]


def test_a_shape_is_moved_behind_what_it_measures() -> None:
    text = """(float[N] x) => (float[N] y) {
        a = Neg(x)  b = Exp(a)  s = Shape(a)  t = Shape(b)  u = Add(s, t)  y = Expand(b, u)
    }"""
    graph = graph_of(text)
    late = [node for node in graph if node.op_type in ("Shape", "Add")]
    for node in late:
        mark(node, Phase.BACKWARD)
    measure_early(graph, set(late))
    assert [node.op_type for node in graph] == ["Neg", "Shape", "Exp", "Shape", "Add", "Expand"]
    assert phase_of(graph[1]) is Phase.FORWARD and not graph[1].doc_string
