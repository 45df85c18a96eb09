"""Nodes that were added to a graph, made fewer: equal ones are shared, shapes are taken early."""

from __future__ import annotations

from collections.abc import Collection, Hashable

import onnx_ir as ir

from onnxtrain.graph.phase import Phase, mark
from onnxtrain.graph.torch_export.traced import is_clamp, is_detached, is_flat_at_bounds, looked_up
from onnxtrain.types import MS, ONNX, op_name

RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
    | {"RandomUniformLike"}
)
"""Operators that draw: two of them are not the same although they are equal."""
_PURE_ELSEWHERE = frozenset({op_name(MS, "BroadcastGradientArgs"), op_name(MS, "Scale")})
_MEASURES = frozenset({"Shape", "Size"})


def share_equal(
    graph: ir.Graph, nodes: Collection[ir.Node | None], keep: Collection[ir.Value]
) -> None:
    """Let nodes that compute the same from the same be one, in place.

    Args:
        graph: The graph.
        nodes: Nodes that may be removed.
        keep: Values that stay what and where they are.
    """
    seen: dict[Hashable, ir.Node] = {}
    for node in list(graph):
        key = _key(node) if node in nodes else None
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is node or any(value in keep for value in node.outputs):
            continue
        for old, new in zip(node.outputs, first.outputs, strict=True):
            ir.convenience.replace_all_uses_with(old, new)
        graph.remove(node, safe=True)


def _key(node: ir.Node) -> Hashable:
    """What a node computes and how it is trained, or None if it may not be shared."""
    pure = node.domain == ONNX and node.op_type not in RANDOM
    if not pure and op_name(node.domain, node.op_type) not in _PURE_ELSEWHERE:
        return None
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        value = attribute.value
        if not isinstance(value, (int, float, str, bytes, tuple)):
            return None
        attributes.append((name, value))
    named = tuple(bool(value.name) for value in node.outputs)
    trained = is_detached(node), is_clamp(node), is_flat_at_bounds(node), looked_up(node)
    return (node.domain, node.op_type, tuple(node.inputs), tuple(attributes), named, trained)


def is_measure(node: ir.Node) -> bool:
    """Whether a node reads nothing of a value but its sizes."""
    return node.domain == ONNX and node.op_type in _MEASURES


def measure_early(graph: ir.Graph, nodes: Collection[ir.Node | None]) -> None:
    """Take the shape of a value where it is made, so that it is not kept for that, in place.

    Args:
        graph: The graph.
        nodes: Nodes that may be moved; what others make is measured right behind them.
    """
    for node in list(graph):
        if node not in nodes or not is_measure(node):
            continue
        value = node.inputs[0]
        maker = None if value is None else value.producer()
        if maker is not None and maker not in nodes and maker.graph is graph:
            graph.remove(node)
            graph.insert_after(maker, node)
            mark(node, Phase.FORWARD)
            node.doc_string = None
