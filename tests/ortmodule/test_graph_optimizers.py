"""Functions that edit the graphs of modules, and what they do it with."""

import copy
from collections.abc import Iterator

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from onnxtrain import ORTModule
from onnxtrain.errors import GraphError
from onnxtrain.ortmodule.graph_optimizer_registry import (
    GraphOptimizerRegistry,
    register_graph_optimizer,
)
from onnxtrain.ortmodule.graph_optimizers import (
    GraphMatcher,
    check_attribute_value,
    make_constant_node,
    update_graph,
)

pytestmark = pytest.mark.usefixtures("strict")


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = [*GraphOptimizerRegistry._registered]
    yield
    GraphOptimizerRegistry._registered[:] = before


class Shrinking(nn.Module):
    """Two layers, and a square root that a function may replace with something else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.dropout(self.norm(self.first(x)), 0.0)
        with torch.no_grad():
            frozen = self.last.weight.sum()
        return self.last(torch.tanh(y).abs().sqrt()) * frozen


def step(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    y = module(x)
    y.square().sum().backward()
    return [y, *(p.grad for p in module.parameters())]


def test_a_graph_that_is_not_changed_trains_as_before() -> None:
    torch.manual_seed(0)
    plain, x, seen = Shrinking().double(), torch.randn(5, 4, dtype=torch.float64), []

    @register_graph_optimizer(target_modules="Other|Shrinking", devices="cuda|cpu")
    def look(graph: onnx.GraphProto) -> None:
        seen.extend(node.op_type for node in graph.node)

    wrapped = ORTModule(copy.deepcopy(plain))
    for _ in range(2):
        torch.testing.assert_close(step(wrapped, x), step(plain, x))
    torch.testing.assert_close(wrapped.state_dict(), plain.state_dict())
    assert {"YieldOp", "Sqrt"} <= {*seen}
    assert seen.count("YieldOp") == 1


def powers(exponent: float) -> None:
    """Have the square root be a power."""

    @register_graph_optimizer(devices="cpu")
    def as_power(graph: onnx.GraphProto) -> None:
        matcher = GraphMatcher(graph)
        pattern = [("Sqrt", False, []), ("Abs", True, [(0, 0, 0)])]
        (found,) = matcher.match_pattern(pattern)
        root, absolute = found
        inner = absolute.input[0]
        kind, shape = matcher.get_type_and_shape(inner)
        assert kind == TensorProto.DOUBLE and len(shape or []) == 2
        nodes = [
            helper.make_node("Pow", ["positive", "exponent"], [*root.output], name="power"),
            make_constant_node("exponent", kind, [], [exponent]),
            helper.make_node("Abs", [inner], ["positive"], name="positive"),
        ]
        info = helper.make_tensor_value_info("positive", kind, shape)
        # the gradient of Abs reads its input, that of Sqrt its output
        update_graph(graph, [root, absolute], nodes, [info])


def test_nodes_take_the_place_of_others() -> None:
    torch.manual_seed(0)
    plain, x = Shrinking().double(), torch.randn(5, 4, dtype=torch.float64)
    powers(0.5)
    wrapped = ORTModule(copy.deepcopy(plain))
    torch.testing.assert_close(step(wrapped, x), step(plain, x))
    (session,) = wrapped._all_sessions()
    kinds = {node.op_type for node in session.model.graph}
    assert "Pow" in kinds and "Sqrt" not in kinds


def test_what_gives_other_results_is_refused() -> None:
    powers(0.75)
    with pytest.raises(GraphError, match="differs from torch's"):
        ORTModule(Shrinking().double())(torch.randn(5, 4, dtype=torch.float64))


def test_the_order_is_that_of_priorities() -> None:
    order: list[str] = []
    for name, priority, modules, devices in (
        ("low", 0, "all", "all"),
        ("high", 2, "Linear", "cpu"),
        ("middle", 1, "all", "cpu|cuda"),
        ("gpu", 3, "all", "cuda"),
        ("other", 3, "Line|arLinear", "all"),
    ):
        register_graph_optimizer(modules, devices, priority)(
            lambda graph, name=name: order.append(name)
        )
    ORTModule(nn.Linear(4, 2))(torch.ones(3, 4)).sum().backward()
    assert order == ["high", "middle", "low"]
    with torch.no_grad():
        ORTModule(nn.Linear(4, 2))(torch.ones(3, 4))
    assert len(order) == 3, "without gradients the graph is not one that trains"


def test_ends_of_the_graph_stay() -> None:
    register_graph_optimizer()(lambda graph: graph.output.pop())
    with pytest.raises(GraphError, match="has changed inputs or outputs"):
        ORTModule(nn.Linear(4, 2))(torch.ones(3, 4))


def nodes_of(*rows: tuple[str, list[str], list[str]]) -> onnx.GraphProto:
    nodes = [helper.make_node(kind, ins, outs, name=outs[0]) for kind, ins, outs in rows]
    return helper.make_graph(nodes, "g", [], [])


def test_patterns() -> None:
    graph = nodes_of(
        ("Split", ["x"], ["a", "b"]),
        ("Exp", ["a"], ["c"]),
        ("Exp", ["b"], ["d"]),
        ("Mul", ["c", "d"], ["e"]),
        ("Mul", ["d", "c"], ["f"]),
        ("Add", ["e", "x"], ["g"]),
    )
    matcher = GraphMatcher(graph)

    def names(*pattern: tuple[str, bool, list[tuple[int, int, int]]]) -> list[list[str]]:
        return [[node.name for node in found] for found in matcher.match_pattern([*pattern])]

    both = [("Exp", True, [(0, 0, 0)]), ("Exp", True, [(0, 0, 1)])]
    assert names(("Mul", False, []), *both) == [["e", "c", "d"], ["f", "d", "c"]]
    same = ("Split", True, [(1, 0, 0), (2, 1, 0)])
    assert names(("Mul", False, []), *both, same) == [["e", "c", "d", "a"]]
    assert names(("Exp", False, []), ("Split", True, [(0, -1, 0)])) == [["c", "a"], ["d", "a"]]
    assert names(("Exp", False, []), ("Mul", False, [(0, 0, 1)])) == [["c", "f"], ["d", "e"]]
    assert names(("Exp", False, []), ("Mul", False, [(0, 0, -1)])) == [["c", "e"], ["d", "e"]]
    assert names(("Add", False, []), ("Exp", True, [(0, 0, 1)])) == []
    assert names(("Add", False, []), ("Mul", True, [(0, 0, 5)])) == []
    assert [matcher.get_consumer_count(name) for name in ("c", "x", "g")] == [2, 2, 0]


def test_constants_and_attributes() -> None:
    graph = nodes_of(("Neg", ["four"], ["y"]))
    node = make_constant_node("four", TensorProto.INT64, [2, 1], [4, 5])
    graph.node.append(node)
    graph.initializer.append(helper.make_tensor("half", TensorProto.FLOAT, [], [0.5]))
    matcher = GraphMatcher(graph)
    assert matcher.get_constant_value("four") == [[4], [5]]
    assert matcher.get_constant_value("half") == 0.5
    assert matcher.get_constant_value("y") is None is matcher.get_constant_value("none")
    assert matcher.get_type_and_shape("half") == (TensorProto.FLOAT, [])
    assert matcher.get_type_and_shape("y") == (None, None)
    turn = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    assert check_attribute_value(turn, "perm", [1, 0])
    assert not check_attribute_value(turn, "perm", [0, 1])
    assert check_attribute_value(turn, "axes", None)
