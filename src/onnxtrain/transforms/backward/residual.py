"""The gradient of a normalization beside a shortcut: what the shortcut brings is added on the way.

y = x + f(norm(x)) sends two gradients to x. The one through the norm is written by the operator
that computes it, already added to the other, instead of being read and written once more.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.edit import detach, take_over
from onnxtrain.types import MS, ONNX, OWN

_JOINED = {
    "LayerNormalizationGrad": "LayerNormalizationGradAdd",
    "SimplifiedLayerNormalizationGrad": "SimplifiedLayerNormalizationGradAdd",
}


def join_residuals(model: ir.Model) -> int:
    """Join every sum of two gradients of which a normalization gives one; gives their number."""
    graph = model.graph
    places = {node: index for index, node in enumerate(graph)}
    replaced: list[ir.Node] = []
    for node in list(graph):
        if node.domain == MS and node.op_type in _JOINED:
            found = _sum_of(node)
            residual = None if found is None else _other(found, node.outputs[0])
            if found is not None and residual is not None and _before(residual, node, places):
                places[_join(graph, node, found, residual)] = places[node]
                replaced += detach(node, found)
    if replaced:
        graph.remove(replaced, safe=True)
        graph.opset_imports.setdefault(OWN, 1)
    return len(replaced) // 2


def _sum_of(node: ir.Node) -> ir.Node | None:
    """The sum of two that alone reads the gradient of the input, if there is one."""
    dx = node.outputs[0]
    readers = [use.node for use in dx.uses()]
    if len(readers) != 1 or dx.is_graph_output():
        return None
    reader = readers[0]
    fits = reader.domain == ONNX and reader.op_type in ("Sum", "Add") and len(reader.inputs) == 2
    return reader if fits and reader.graph is node.graph else None


def _other(node: ir.Node, dx: ir.Value) -> ir.Value | None:
    """The other term, if it has the same type and shape for sure."""
    first, second = node.inputs
    other = second if first is dx else first
    if other is None or other is dx or other.dtype != dx.dtype:
        return None
    same = other.shape is not None and dx.shape is not None and other.shape == dx.shape
    return other if same else None


def _before(value: ir.Value, node: ir.Node, places: dict[ir.Node, int]) -> bool:
    """Whether a value exists when a node runs."""
    producer = value.producer()
    return producer is None or places.get(producer, len(places)) < places[node]


def _join(graph: ir.Graph, node: ir.Node, total: ir.Node, residual: ir.Value) -> ir.Node:
    """Put the joined operator where the gradient was, its first output where the sum was."""
    joined = ir.node(
        _JOINED[node.op_type],
        [*node.inputs, residual],
        node.attributes,
        domain=OWN,
        num_outputs=len(node.outputs),
        name=f"{node.name}_Add",
    )
    graph.insert_before(node, joined)
    pairs = list(zip((total.outputs[0], *node.outputs[1:]), joined.outputs, strict=True))
    for old, new in pairs:
        take_over(old, new)
    return joined
