"""A graph in the form that others rely on: constants are initializers, names mean one thing."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as passes

from onnxtrain.graph.bodies import subgraphs
from onnxtrain.graph.edit import fresh_name
from onnxtrain.graph.walk import all_nodes

_NODE = "onnxtrain.constant_node"
"""Where an initializer keeps that a node of the file made it."""


def tidy(model: ir.Model) -> None:
    """Turn Constant nodes into initializers and give nodes and values names of their own."""
    constants = [node for node in all_nodes(model.graph) if node.op_type == "Constant"]
    for node in constants:
        node.outputs[0].meta[_NODE] = True
    if constants or model.functions:
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    unshadow(model.graph)
    name_nodes(model.graph)


def was_node(value: ir.Value) -> bool:
    """Whether an initializer of a tidy graph was a Constant node."""
    return _NODE in value.meta


def name_nodes(graph: ir.Graph) -> None:
    """Give every node a name, since errors, profiles and gradients speak of nodes by name."""
    nameless = [node for node in all_nodes(graph) if not node.name]
    taken = {str(node.name) for node in all_nodes(graph) if node.name} if nameless else set()
    for node in nameless:
        base = next((v.name for v in node.outputs if v.name), None) or node.op_type
        node.name = fresh_name(f"{node.op_type}_{base}", taken)


def unshadow(graph: ir.Graph) -> None:
    """Rename what a subgraph defines under a name that is taken outside or beside it, in place."""
    inner_graphs = [inner for _, inner in subgraphs(graph)]
    taken = {str(value.name) for value in _defined(graph)} if inner_graphs else set()
    for inner in inner_graphs:
        for value in _defined(inner):
            if value.name in taken:
                value.name = fresh_name(str(value.name), taken)
            taken.add(str(value.name))


def _defined(graph: ir.Graph) -> list[ir.Value]:
    """Named values that a graph itself defines, each once."""
    values = [*graph.inputs, *graph.initializers.values()]
    values += [value for node in graph for value in node.outputs]
    return [value for value in dict.fromkeys(values) if value.name]
