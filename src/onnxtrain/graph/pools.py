"""Pools whose sizes are rounded up: before opset 22 ONNX's inference counts a window too many.

A window that would begin beyond the data and the padding before it is left out, which is what every
runtime does and what inference knows since opset 22. Nothing else changed in that version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxtrain.types import ONNX

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_COUNTED_SINCE = 22
_GRAPH = ir.AttributeType.GRAPH

InferNode = Callable[[ir.Node, dict[str, int]], None]


def rounds_up(node: ir.Node) -> bool:
    """Whether a node is such a pool."""
    return (
        node.domain == ONNX
        and node.op_type in _POOLS
        and bool(node.attributes.get_int("ceil_mode", 0))
    )


def counting(node: ir.Node, imports: dict[str, int]) -> dict[str, int]:
    """The opsets to infer a node with."""
    if not rounds_up(node):
        return imports
    return {**imports, ONNX: max(_COUNTED_SINCE, imports.get(ONNX, 1))}


def recount(model: ir.Model, infer_node: InferNode) -> None:
    """Infer such pools one by one, and all that reads them, in place."""
    if model.graph.opset_imports.get(ONNX, 1) < _COUNTED_SINCE:
        _recount(model.graph, model.graph.opset_imports, infer_node, set())


def _recount(
    graph: ir.Graph, imports: dict[str, int], infer_node: InferNode, changed: set[ir.Value | None]
) -> None:
    for node in graph:
        known = len(changed)
        bodies = [a.as_graph() for a in node.attributes.values() if a.type == _GRAPH]
        for body in bodies:
            _recount(body, imports, infer_node, changed)
        reads = known < len(changed) or any([value in changed for value in node.inputs])
        if not reads and not rounds_up(node):
            continue
        before = [value.shape for value in node.outputs]
        if bodies:
            _open(node.outputs)
        else:
            infer_node(node, imports)
        pairs = zip(node.outputs, before, strict=True)
        changed.update(value for value, shape in pairs if value.shape != shape)


def _open(values: Sequence[ir.Value]) -> None:
    """Forget the sizes of what a body made, which may be other ones now."""
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape([None] * len(value.shape))
