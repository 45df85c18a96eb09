from graph.text import model, values
from onnxtrain.graph.edit import (
    blank_unused_outputs,
    collected_names,
    detach,
    extra_output,
    is_used,
    remove_dead,
    taken_names,
    unique_name,
    value_names,
)

IF = """(bool c, float[2] x) => (float[2] y) {
    y = If(c) <then_branch = then () => (float[2] a) { a = Neg(x) },
               else_branch = other () => (float[2] b) { b = Abs(x) }>
}"""


def test_names_of_subgraphs_are_taken_too() -> None:
    graph = model(IF).graph
    assert value_names(graph) == {"c", "x", "y", "a", "b"}
    assert unique_name(graph, "z") == "z"
    assert unique_name(graph, "a") == "a_2"


def test_names_are_collected_once_for_many_new_ones() -> None:
    graph = model(IF).graph
    with collected_names(graph):
        taken = taken_names(graph)
        with collected_names(graph):
            assert taken_names(graph) is taken
        assert [unique_name(graph, "b") for _ in range(3)] == ["b_2", "b_3", "b_4"]
        taken.add("new")
        assert unique_name(graph, "new") == "new_2"
    assert unique_name(graph, "new") == "new" and taken_names(graph) is not taken


def test_use_is_reading_or_returning() -> None:
    found = values(model("(float[2] x) => (float[2] y) { y = Neg(x)  z = Abs(x) }"))
    assert {name for name, v in found.items() if is_used(v)} == {"x", "y"}


def test_dead_nodes_go_with_what_only_they_read() -> None:
    graph = model(
        "(float[2] x) => (float[2] y) <float[2] w = {1, 2}> "
        "{ y = Neg(x)  z = Add(x, w)  u = Abs(z) }"
    ).graph
    remove_dead(graph)
    assert [node.op_type for node in graph] == ["Neg"] and not graph.initializers


def test_nodes_that_are_kept_stay() -> None:
    graph = model("(float[2] x) => (float[2] y) { y = Neg(x)  z = Abs(x) }").graph
    remove_dead(graph, keep=lambda node: node.op_type == "Abs")
    assert len(graph) == 2


def test_unused_optional_outputs_lose_their_names() -> None:
    graph = model(
        "(float[1,1,4] dy, float[1,1,4] x, float[1,1,1] w) => (float[1,1,1] dw) "
        "{ dx, dw, db = com.microsoft.ConvGrad(dy, x, w) }",
        com_microsoft=1,
    ).graph
    blank_unused_outputs(graph[0])
    assert [v.name for v in graph[0].outputs] == ["", "dw"]


def test_required_outputs_stay() -> None:
    graph = model("(float[4] x, int64[1] k) => (float[N] v) { v, i = TopK(x, k) }").graph
    blank_unused_outputs(graph[0])
    assert [v.name for v in graph[0].outputs] == ["v", "i"]


def test_outputs_that_are_kept_keep_their_names() -> None:
    graph = model("(float[4] x) => (float[4] y) { y, mask = Dropout(x) }").graph
    blank_unused_outputs(graph[0], keep=[graph[0].outputs[1]])
    assert [v.name for v in graph[0].outputs] == ["y", "mask"]


def test_outputs_that_are_counted_stay() -> None:
    graph = model("(float[4] x) => (float[2] a) { a, b = Split<num_outputs=2>(x) }").graph
    blank_unused_outputs(graph[0])
    assert [v.name for v in graph[0].outputs] == ["a", "b"]


def test_a_missing_output_is_added_and_typed() -> None:
    graph = model("(float[2] x) => (float[2] y) { y = Dropout(x) }").graph
    node = graph[0]
    mask = extra_output(node, 1, "x", like=graph.inputs[0])
    assert mask.name == "x_2" and str(mask.shape) == "[2]"
    assert extra_output(node, 1, "other") is mask and mask.name == "x_2"


def test_outputs_in_between_stay_unnamed() -> None:
    graph = model(
        "(float[2,3] x, float[3] s) => (float[2,3] y) { y = LayerNormalization(x, s) }"
    ).graph
    added = extra_output(graph[0], 2, "inv_std")
    assert [v.name for v in graph[0].outputs] == ["y", "", "inv_std"]
    assert added is graph[0].outputs[2]


def test_a_chain_of_dead_nodes_goes_at_once() -> None:
    graph = model("(float[2] x) => (float[2] y) { a = Abs(x)  b = Neg(a)  y = Exp(x) }").graph
    remove_dead(graph)
    assert [node.op_type for node in graph] == ["Exp"]
    assert [node.op_type for node, _ in graph.inputs[0].uses()] == ["Exp"]


def test_a_detached_node_reads_nothing() -> None:
    graph = model("(float[2] x) => (float[2] y) { a = Add(x, x)  y = Exp(x) }").graph
    node = graph[0]
    detach(node)
    assert set(node.inputs) == {None} and node.graph is graph
    graph.remove([node], safe=True)
    assert [node.op_type for node in graph] == ["Exp"]
