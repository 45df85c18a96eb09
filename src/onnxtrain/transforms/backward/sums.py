"""Gradients with their sums over rows, which are the gradient of a bias, written in one pass.

``bias.py`` does so for the gradient of Gelu; these are normalizations beside a shortcut, dropout,
and the parts of a product that is split after its bias is added.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxtrain.graph.edit import detach, take_over
from onnxtrain.transforms.backward.bias import sum_of
from onnxtrain.types import MS, ONNX, OWN

_NORM, _SUMS = "LayerNormalizationGradAdd", 3
Fits = Callable[[ir.Node], bool]


def join_norm_sums(model: ir.Model) -> int:
    """Let gradients of normalizations give the sums of what they write; gives their number."""
    return _join_all(model, OWN, _NORM, lambda n: len(n.outputs) <= _SUMS, _NORM)


def join_dropout_sums(model: ir.Model) -> int:
    """Let gradients of dropout give the sums of what they write; gives their number."""
    return _join_all(model, MS, "DropoutGrad", lambda node: True, "DropoutGradSum")


def join_packed_sums(model: ir.Model) -> int:
    """Let parts that are put side by side be summed on the way; gives the number of places."""
    return _join_all(model, ONNX, "Concat", _is_packing, "ConcatSum")


def _is_packing(node: ir.Node) -> bool:
    """Whether a Concat puts tensors of one shape side by side along the last axis."""
    first = node.inputs[0]
    if first is None or first.shape is None or len(node.inputs) < 2:
        return False
    axis, rank = node.attributes["axis"].as_int(), len(first.shape)
    same = all(v is not None and v.shape == first.shape for v in node.inputs)
    return same and axis in (-1, rank - 1) and isinstance(first.shape[-1], int)


def _join_all(model: ir.Model, domain: str, op_type: str, fits: Fits, joined: str) -> int:
    """Join every such node that is summed over all axes but the last."""
    graph = model.graph
    replaced: list[ir.Node] = []
    for node in list(graph):
        if (node.domain, node.op_type) == (domain, op_type) and fits(node):
            total = sum_of(node.outputs[0])
            if total is not None:
                _join(graph, node, total, joined)
                replaced += detach(node, total)
    if replaced:
        graph.remove(replaced, safe=True)
        graph.opset_imports.setdefault(OWN, 1)
    return len(replaced) // 2


def _join(graph: ir.Graph, node: ir.Node, total: ir.Node, op_type: str) -> None:
    kept = {} if op_type == "ConcatSum" else dict(node.attributes)
    kept.pop("seed", None)
    count = _SUMS if op_type == _NORM else 1
    new = ir.node(
        op_type, node.inputs, kept, domain=OWN, num_outputs=count + 1, name=f"{node.name}_Sum"
    )
    graph.insert_before(node, new)
    for position, old in enumerate(node.outputs):
        take_over(old, new.outputs[position])
    for spare in new.outputs[len(node.outputs) : count]:
        spare.name = ""
    take_over(total.outputs[0], new.outputs[count])
