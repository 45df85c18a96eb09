from graph.text import model
from onnxtrain.graph.walk import all_graphs, all_nodes

NESTED = """(bool c, int64 n, float[2] x) => (float[2] y) {
  a = Neg(x)
  b = If (c) <
    then_branch = t () => (float[2] p) {
      p = Loop (n, , a) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] u) {
        on = Identity(go)  u = Sin(v) }> },
    else_branch = e () => (float[2] k) { k = Abs(a) }>
  y = Exp(b)
}"""


def test_nodes_come_in_order_each_before_those_in_its_bodies():
    of = model(NESTED)
    found = [node.op_type for node in all_nodes(of.graph)]
    assert found == ["Neg", "If", "Loop", "Identity", "Sin", "Abs", "Exp"]
    assert found == [node.op_type for node in of.graph.all_nodes()]


def test_graphs_come_in_order_each_before_those_inside():
    of = model(NESTED)
    assert [graph.name for graph in all_graphs(of.graph)] == ["main", "t", "b", "e"]
    assert list(all_graphs(of.graph)) == list(of.graphs())
