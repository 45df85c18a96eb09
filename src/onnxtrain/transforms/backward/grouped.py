"""Group normalization and the Relu or SiLU behind it in one operator, both gradients in another.

What is between them is not kept: the gradient computes it again from what the normalization reads.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from onnxtrain.graph.edit import detach, sole_reader, take_over
from onnxtrain.types import MS, ONNX, OWN

_GRADIENTS = {(ONNX, "Relu"): (MS, "ReluGrad"), (MS, "QuickGelu"): (MS, "QuickGeluGrad")}
"""Activations and the operators of their gradients."""


class _Place(NamedTuple):
    """A normalization, what is behind it, and their gradients."""

    norm: ir.Node
    act: ir.Node
    act_grad: ir.Node
    norm_grad: ir.Node


def join_groups(model: ir.Model) -> int:
    """Join every one that only an activation and its gradient read; gives their number."""
    graph = model.graph
    found = [node for node in graph if _kind(node) == (OWN, "GroupNormalized")]
    places = [place for node in found if (place := _place(node)) is not None]
    for place in places:
        _join(graph, place)
    graph.remove([node for place in places for node in detach(*place)], safe=True)
    return len(places)


def _place(norm: ir.Node) -> _Place | None:
    """What belongs to a normalization, if it belongs to nobody else."""
    y = norm.outputs[0]
    if y.is_graph_output() or len(norm.outputs) != 3 or _activation(norm) != "none":
        return None
    acts = [node for node, _ in y.uses() if _kind(node) in _GRADIENTS]
    if len(acts) != 1:
        return None
    act = acts[0]
    # the gradient of a Relu reads what it gives, that of SiLU what it takes
    read = act.outputs[0] if act.op_type == "Relu" else y
    grads = [node for node, index in read.uses() if _kind(node) == _GRADIENTS[_kind(act)] and index]
    if len(grads) != 1 or {node for node, _ in y.uses()} - {act, grads[0]}:
        return None
    if _alpha(act) != _alpha(grads[0]):
        return None
    last = sole_reader(grads[0].outputs[0])
    if last is None or _kind(last) != (OWN, "GroupNormalizedGrad"):
        return None
    same = [grads[0].outputs[0], *norm.inputs[:2], *norm.outputs[1:3]]
    if len(last.inputs) != 5 or any(a is not b for a, b in zip(last.inputs, same, strict=True)):
        return None
    return _Place(norm, act, grads[0], last)


def _join(graph: ir.Graph, place: _Place) -> None:
    norm, act, act_grad, norm_grad = place
    given = dict(norm.attributes)
    given["activation"] = ir.AttrString("activation", "relu" if act.op_type == "Relu" else "swish")
    if act.op_type == "QuickGelu":
        given["alpha"] = ir.AttrFloat32("alpha", _alpha(act))
    forward = ir.node(
        "GroupNormalized",
        norm.inputs,
        given,
        domain=OWN,
        num_outputs=3,
        name=f"{norm.name}_{act.op_type}",
    )
    graph.insert_before(norm, forward)
    for new, old in zip(forward.outputs, [act.outputs[0], *norm.outputs[1:3]], strict=True):
        take_over(old, new)
    backward = ir.node(
        "GroupNormalizedGrad",
        [act_grad.inputs[0], *norm.inputs[:2], *forward.outputs[1:3], norm.inputs[2]],
        given,
        domain=OWN,
        num_outputs=3,
        name=f"{norm_grad.name}_{act.op_type}",
    )
    graph.insert_before(norm_grad, backward)
    for new, old in zip(backward.outputs, norm_grad.outputs, strict=True):
        take_over(old, new)


def _activation(norm: ir.Node) -> str:
    return norm.attributes.get_string("activation", "none")


def _alpha(act: ir.Node) -> float:
    return act.attributes.get_float("alpha", 1.702)


def _kind(node: ir.Node) -> tuple[str, str]:
    return node.domain, node.op_type
