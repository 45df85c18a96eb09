"""The gradient of Gelu with its sums over rows, which are the gradient of the bias before it."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.edit import detach, take_over
from onnxtrain.types import MS, ONNX, OWN

_GELUS = {"FastGeluGrad": "tanh", "GeluGrad": "none"}


def join_bias_sums(model: ir.Model) -> int:
    """Join every gradient of Gelu that is summed over all axes but the last; gives their number."""
    graph = model.graph
    replaced: list[ir.Node] = []
    for node in list(graph):
        if node.domain == MS and node.op_type in _GELUS and len(node.inputs) == 2:
            total = sum_of(node.outputs[0])
            if total is not None:
                _join(graph, node, total)
                replaced += detach(node, total)
    if replaced:
        graph.remove(replaced, safe=True)
        graph.opset_imports.setdefault(OWN, 1)
    return len(replaced) // 2


def sum_of(value: ir.Value) -> ir.Node | None:
    """The sum of a value over all axes but the last, seen as a matrix or as it is."""
    for use in value.uses():
        node = use.node
        if _is(node, "ReduceSum") and _sums_rows(node, value):
            return node
        if _is(node, "Reshape") and use.idx == 0:
            again = [u.node for u in node.outputs[0].uses()]
            sums = [n for n in again if _is(n, "ReduceSum") and _sums_rows(n, node.outputs[0])]
            if sums and _last(node.outputs[0]) == _last(value) is not None:
                return sums[0]
    return None


def _is(node: ir.Node, op_type: str) -> bool:
    return (node.domain, node.op_type) == (ONNX, op_type)


def _last(value: ir.Value) -> int | None:
    """Size of the last axis, if it is known."""
    dim = value.shape[-1] if value.shape is not None and len(value.shape) else None
    return dim if isinstance(dim, int) else None


def _sums_rows(node: ir.Node, value: ir.Value) -> bool:
    """Whether a ReduceSum leaves the last axis alone as a vector."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = None if axes is None else axes.const_value
    kept = node.attributes.get("keepdims")
    if tensor is None or kept is None or kept.as_int() or value.shape is None:
        return False
    rank = len(value.shape)
    found = sorted(int(axis) % rank for axis in tensor.numpy().reshape(-1))
    return node.inputs[0] is value and found == list(range(rank - 1))


def _join(graph: ir.Graph, node: ir.Node, total: ir.Node) -> None:
    joined = ir.node(
        "GeluGradSum",
        node.inputs,
        {"approximate": _GELUS[node.op_type]},
        domain=OWN,
        num_outputs=2,
        name=f"{node.name}_Sum",
    )
    graph.insert_before(node, joined)
    for old, new in zip((node.outputs[0], total.outputs[0]), joined.outputs, strict=True):
        take_over(old, new)
