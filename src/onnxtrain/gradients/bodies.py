"""Operators without a rule whose schema has a body: the body is differentiated instead."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxtrain.gradients.engine import depends_on
from onnxtrain.gradients.rules import find_rule
from onnxtrain.graph.bindings import opset_of
from onnxtrain.graph.edit import reads
from onnxtrain.graph.functions import expand_functions
from onnxtrain.graph.walk import all_nodes


def expand_without_rule(model: ir.Model, xs: Iterable[str], ys: Iterable[str]) -> ir.Model:
    """Replace nodes between xs and ys that have no gradient rule by the bodies of their schemas.

    Args:
        model: A prepared model; it is changed.
        xs: Names of values whose gradients are wanted.
        ys: Names of values that are differentiated.
    """
    starts, ends = set(xs), set(ys)

    def has_rule(node: ir.Node) -> bool:
        version = opset_of(node, model.opset_imports)
        return find_rule(node.domain, node.op_type, version) is not None

    if all(has_rule(node) for node in all_nodes(model.graph)):
        return model
    return expand_functions(model, has_rule, lambda: _between(model.graph, starts, ends))


def _between(graph: ir.Graph, xs: set[str], ys: set[str]) -> list[ir.Node]:
    """Nodes that a gradient may have to cross, and all nodes in their subgraphs."""
    values = [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
    reached = depends_on(graph, [v for v in values if v.name in xs])
    leading = {v for v in values if v.name in ys}
    found = []
    for node in reversed(list(graph)):
        if leading.isdisjoint(node.outputs):
            continue
        leading.update(reads(node))
        if not reached.isdisjoint(reads(node)):
            found += [node, *_inside(node)]
    return found[::-1]


def _inside(node: ir.Node) -> list[ir.Node]:
    """Nodes of the subgraphs of a node."""
    graphs = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
    return [inner for graph in graphs for inner in graph.all_nodes()]
