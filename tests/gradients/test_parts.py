"""Gradients of some outputs, by some inputs: nothing is missing, nothing is done in vain."""

import collections
import itertools

import onnx_ir as ir
import pytest

from onnxtrain.gradients.engine import backward
from onnxtrain.graph.edit import reads
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.testing import gradcheck, trials
from onnxtrain.testing.case import Case
from onnxtrain.testing.gradcheck import Point
from onnxtrain.testing.model import draw, input_name, one_node_model
from onnxtrain.types import DataType

EACH = 1
"""Rows of an operator that are tried."""


def _rows(several: str) -> list[Case]:
    """Rows with several floating point outputs, or inputs."""
    count: collections.Counter[tuple[str, str]] = collections.Counter()
    found = []
    for case in trials.by_autograd(DataType.DOUBLE):
        parts = case.outputs - len(case.empty) if several == "outputs" else _inputs(case)
        if parts > 1 and case.gradient and count[case.domain, case.op] < EACH:
            count[case.domain, case.op] += 1
            found.append(case)
    return found


def _inputs(case: Case) -> int:
    return len(gradcheck.differentiable(case, draw(case, DataType.DOUBLE)))


@pytest.mark.parametrize("case", _rows("outputs"), ids=str)
def test_any_subset_of_the_outputs_can_have_a_gradient(case: Case) -> None:
    at = gradcheck.drawn(case, DataType.DOUBLE)
    for count in range(1, len(at.seeds)):
        for chosen in itertools.combinations(at.seeds, count):
            part = Point(case, at.inputs, {p: at.seeds[p] for p in chosen})
            pairs = zip(gradcheck.by_graph(part), gradcheck.by_autograd(part), strict=True)
            for ours, true in pairs:
                largest = float(true.abs().max()) if true.numel() else 0.0
                assert float((ours - true).abs().sum()) <= 1e-9 * (1 + largest), chosen


@pytest.mark.parametrize("case", _rows("inputs"), ids=str)
def test_one_input_alone_needs_no_more_nodes_than_it_uses(case: Case) -> None:
    values = draw(case, DataType.DOUBLE)
    together = _emitted(case, gradcheck.differentiable(case, values))
    for index in gradcheck.differentiable(case, values):
        alone = _emitted(case, [index])
        assert len(alone) <= len(together)


def _emitted(case: Case, wanted: list[int]) -> list[ir.Node]:
    """The nodes of a gradient, all of which something reads."""
    graph = prepare(load_model(one_node_model(case, draw(case, DataType.DOUBLE)))).graph
    forward = set(graph)
    xs = [v for i in wanted for v in graph.inputs if v.name == input_name(case, i)]
    seeds = {
        y: ir.Value(name=f"seed_{y.name}", type=y.type, shape=y.shape)
        for y in graph.outputs
        if y.dtype == DataType.DOUBLE
    }
    graph.inputs.extend(seeds.values())
    grads = set(backward(graph, xs, seeds).values())
    nodes = [node for node in graph if node not in forward]
    used = {value for node in graph for value in reads(node)} | grads
    idle = [str(node.op_type) for node in nodes if not used & set(node.outputs)]
    assert not idle, f"nobody reads {idle} of the gradient by {[x.name for x in xs]}"
    return nodes
