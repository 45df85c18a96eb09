"""Nodes in an order in which they can run; some files have none, since onnxruntime sorts them."""

from __future__ import annotations

import graphlib

import onnx_ir as ir

from onnxtrain.graph.edit import reads
from onnxtrain.graph.walk import all_graphs


def ordered(model: ir.Model) -> ir.Model:
    """Sort the nodes of graphs in which one reads what a later one makes, in place."""
    if any(_is_mixed_up(graph) for graph in all_graphs(model.graph)):
        try:
            model.graph.sort()
        except ValueError:
            for graph in all_graphs(model.graph):
                _tell_circle(graph)
            raise
    return model


def _tell_circle(graph: ir.Graph) -> None:
    """Raise an error with the nodes that wait for each other, if there are any."""
    own = set(graph)
    makers = {node: own & {value.producer() for value in reads(node)} for node in graph}
    try:
        graphlib.TopologicalSorter(makers).prepare()
    except graphlib.CycleError as error:
        nodes = [f"'{node.name or node.outputs[0].name}'" for node in error.args[1]]
        raise ValueError(f"nodes wait for each other: {' -> '.join(nodes)}") from None


def _is_mixed_up(graph: ir.Graph) -> bool:
    seen: set[ir.Node] = set()
    for node in graph:
        makers = [value.producer() for value in reads(node)]
        if any(m is not None and m.graph is graph and m not in seen for m in makers):
            return True
        seen.add(node)
    return False
