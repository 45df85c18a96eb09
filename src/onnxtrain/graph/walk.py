"""All nodes of a graph, those in the bodies of nodes included.

Both are several times as fast as what onnx-ir has for that.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Nodes in order, each before those in its bodies."""
    for node in graph:
        yield node
        if node.attributes.data:
            for body in bodies_of(node):
                yield from all_nodes(body)


def all_graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The graph, then the bodies of its nodes in order, each before those inside of it."""
    yield graph
    for node in graph:
        if node.attributes.data:
            for body in bodies_of(node):
                yield from all_graphs(body)


def bodies_of(node: ir.Node) -> list[ir.Graph]:
    """The graphs that a node has as attributes."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.data.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            found += attribute.as_graphs()
    return found
