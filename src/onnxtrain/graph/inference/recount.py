"""Nodes whose sizes ONNX's inference gets wrong, inferred once more with all that reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxtrain.graph.inference.attention import is_unsized
from onnxtrain.graph.inference.declared import UNTOLD
from onnxtrain.graph.inference.einsum import is_misread
from onnxtrain.graph.inference.orders import is_backwards, is_outdated
from onnxtrain.graph.inference.pools import is_miscounted
from onnxtrain.graph.inference.split_sizes import is_oversplit
from onnxtrain.graph.inference.transposed import is_mispadded
from onnxtrain.graph.inference.windows import is_too_wide
from onnxtrain.graph.walk import all_nodes

_GRAPH = ir.AttributeType.GRAPH

InferNode = Callable[[ir.Node, dict[str, int]], None]


def recount(model: ir.Model, infer_node: InferNode) -> None:
    """Infer such nodes one by one, and all that reads them, in place."""
    imports = model.graph.opset_imports
    if any(_is_wrong(node, imports) for node in all_nodes(model.graph)):
        _recount(model.graph, imports, infer_node, set())


def _is_wrong(node: ir.Node, imports: dict[str, int]) -> bool:
    return (
        is_miscounted(node, imports)
        or is_misread(node)
        or is_mispadded(node)
        or is_too_wide(node)
        or is_oversplit(node)
        or is_unsized(node)
        or is_outdated(node, imports)
        or is_backwards(node)
    )


def _recount(
    graph: ir.Graph, imports: dict[str, int], infer_node: InferNode, changed: set[ir.Value | None]
) -> None:
    for node in graph:
        known = len(changed)
        bodies = [a.as_graph() for a in node.attributes.values() if a.type == _GRAPH]
        for body in bodies:
            _recount(body, imports, infer_node, changed)
        reads = known < len(changed) or any([value in changed for value in node.inputs])
        if node.op_type in UNTOLD or (not reads and not _is_wrong(node, imports)):
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
