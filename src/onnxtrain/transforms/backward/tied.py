"""The gradient of a table that is looked up and used otherwise too, such as a tied output layer.

The rows that were looked up are added to the other gradient where it is, instead of to zeros of
the whole table's size which are then added to it.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.edit import detach, take_over
from onnxtrain.types import MS, ONNX, OWN


def join_tied(model: ir.Model) -> int:
    """Join every sum of two gradients of which one is that of rows; gives their number."""
    graph = model.graph
    replaced: list[ir.Node] = []
    for node in list(graph):
        if node.domain == ONNX and node.op_type in ("Sum", "Add") and len(node.inputs) == 2:
            found = _rows(node)
            if found is not None:
                rows, other = found
                _join(graph, node, rows, other)
                replaced += detach(node, rows)
    if replaced:
        graph.remove(replaced, safe=True)
        graph.opset_imports.setdefault(OWN, 1)
    return len(replaced) // 2


def _rows(total: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The gradient of rows that only a sum reads, and the other term, of the same type."""
    for one, other in (tuple(total.inputs), tuple(reversed(total.inputs))):
        node = None if one is None else one.producer()
        if one is None or other is None or node is None or one is other:
            continue
        alone = len(one.uses()) == 1 and not one.is_graph_output()
        same = one.dtype == other.dtype and one.shape is not None and one.shape == other.shape
        first = node.attributes.get_int("axis", 0) == 0
        if (node.domain, node.op_type) == (MS, "GatherGrad") and alone and same and first:
            return node, other
    return None


def _join(graph: ir.Graph, total: ir.Node, rows: ir.Node, other: ir.Value) -> None:
    joined = ir.node(
        "GatherGradAdd",
        [*rows.inputs[1:3], other],
        domain=OWN,
        name=f"{rows.name}_Add",
    )
    graph.insert_before(total, joined)
    take_over(total.outputs[0], joined.outputs[0])
