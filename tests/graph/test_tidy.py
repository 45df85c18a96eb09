"""Names that mean one thing."""

from graph.text import model
from onnxtrain.graph.tidy import tidy

HIDING = """(bool c, float[2] x) => (float[2] y, float[2] z) {
  z = Abs(x)
  y = If (c) <then_branch = t () => (float[2] z) { one = Constant <value = float {1.0}> ()
                                                   z = Add(x, one) },
              else_branch = e () => (float[2] w) { one = Constant <value = float {2.0}> ()
                                                   w = Mul(x, one) }>
}"""


def test_every_value_has_a_name_of_its_own() -> None:
    of = model(HIDING)
    tidy(of)
    names = [value.name for node in of.graph.all_nodes() for value in node.outputs]
    constants = [name for graph in of.graphs() for name in graph.initializers]
    assert len({*names, *constants}) == len(names) + len(constants) == 6


def test_names_of_the_main_graph_stay() -> None:
    of = model(HIDING)
    tidy(of)
    assert [value.name for value in of.graph.outputs] == ["y", "z"]


def test_constants_of_branches_belong_to_their_branches() -> None:
    of = model(HIDING)
    tidy(of)
    assert not of.graph.initializers
    assert [len(graph.initializers) for graph in of.graphs()] == [0, 1, 1]
