"""Batch normalization and the Relu behind it in one operator, and both gradients in another."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.graph.edit import detach, sole_reader, take_over
from onnxtrain.types import MS, ONNX, OWN

_NORM, _NORM_GRAD = (MS, "BatchNormInternal"), (MS, "BatchNormalizationGrad")
_RELU, _RELU_GRAD = (ONNX, "Relu"), (MS, "ReluGrad")


def join_normalized(model: ir.Model) -> int:
    """Join every normalization that only a Relu and its own gradient read; gives their number."""
    graph = model.graph
    found = [node for node in graph if _kind(node) == _NORM]
    places = [place for node in found if (place := _place(node)) is not None]
    for place in places:
        _join(graph, *place)
    if places:
        graph.remove([node for place in places for node in detach(*place)], safe=True)
        graph.opset_imports.setdefault(OWN, 1)
    return len(places)


def join_shortcuts(model: ir.Model) -> int:
    """Join every normalization that is added to a shortcut before a Relu; gives their number."""
    graph = model.graph
    count, replaced = 0, list[ir.Node]()
    for relu in [node for node in graph if _kind(node) == _RELU]:
        found = _before_relu(relu)
        if found is not None:
            total, norm, other = found
            _join_shortcut(graph, relu, norm, other)
            replaced += detach(relu, total, norm)
            count += 1
    if count:
        graph.remove(replaced, safe=True)
        graph.opset_imports.setdefault(OWN, 1)
    return count


def _before_relu(relu: ir.Node) -> tuple[ir.Node, ir.Node, ir.Value] | None:
    """The sum and a normalization that nobody else reads, and the shortcut."""
    value = relu.inputs[0]
    total = None if value is None else value.producer()
    if value is None or total is None or _kind(total) != (ONNX, "Add"):
        return None
    if sole_reader(value) is not relu or total.graph is not relu.graph:
        return None
    for one, other in (tuple(total.inputs), tuple(reversed(total.inputs))):
        norm = None if one is None else one.producer()
        if one is None or other is None or norm is None or _kind(norm) != _NORM:
            continue
        same = one.shape is not None and one.shape == other.shape and one.dtype == other.dtype
        if same and _trains(norm) and sole_reader(one) is total:
            return total, norm, other
    return None


def _join_shortcut(graph: ir.Graph, relu: ir.Node, norm: ir.Node, other: ir.Value) -> None:
    kept = {k: v for k, v in norm.attributes.items() if k in ("epsilon", "momentum")}
    joined = ir.node(
        "BatchNormAddRelu",
        [*norm.inputs, other],
        kept,
        domain=OWN,
        num_outputs=5,
        name=f"{norm.name}_AddRelu",
    )
    graph.insert_before(relu, joined)
    _take(joined, [relu.outputs[0], *norm.outputs[1:5]])


def _trains(norm: ir.Node) -> bool:
    """Whether a normalization uses the statistics of the batch, by channel, and gives them out."""
    training = norm.attributes.get("training_mode")
    scale = norm.inputs[1]
    by_channel = scale is not None and scale.shape is not None and len(scale.shape) == 1
    return (training is None or bool(training.as_int())) and len(norm.outputs) == 5 and by_channel


def _kind(node: ir.Node) -> tuple[str, str]:
    return node.domain, node.op_type


def _place(norm: ir.Node) -> tuple[ir.Node, ir.Node, ir.Node, ir.Node] | None:
    """The normalization, the Relu, and their gradients, if they belong to nobody else."""
    if not _trains(norm):
        return None
    relu = sole_reader(norm.outputs[0])
    if relu is None or _kind(relu) != _RELU:
        return None
    grads = [use.node for use in relu.outputs[0].uses() if _kind(use.node) == _RELU_GRAD]
    if len(grads) != 1 or grads[0].inputs[1] is not relu.outputs[0]:
        return None
    grad = sole_reader(grads[0].outputs[0])
    if grad is None or _kind(grad) != _NORM_GRAD or grad.inputs[0] is not grads[0].outputs[0]:
        return None
    same = [norm.inputs[0], norm.inputs[1], norm.outputs[3], norm.outputs[4]]
    if any(a is not b for a, b in zip(grad.inputs[1:5], same, strict=True)):
        return None
    return norm, relu, grads[0], grad


def _join(graph: ir.Graph, norm: ir.Node, relu: ir.Node, relu_grad: ir.Node, grad: ir.Node) -> None:
    kept = {k: v for k, v in norm.attributes.items() if k in ("epsilon", "momentum")}
    forward = ir.node(
        "BatchNormRelu", norm.inputs, kept, domain=OWN, num_outputs=5, name=f"{norm.name}_Relu"
    )
    graph.insert_before(norm, forward)
    _take(forward, [relu.outputs[0], *norm.outputs[1:5]])
    x, scale, bias = norm.inputs[:3]
    backward = ir.node(
        "BatchNormReluGrad",
        [relu_grad.inputs[0], x, scale, bias, forward.outputs[3], forward.outputs[4]],
        {k: v for k, v in grad.attributes.items() if k == "epsilon"},
        domain=OWN,
        num_outputs=3,
        name=f"{grad.name}_Relu",
    )
    graph.insert_before(grad, backward)
    _take(backward, grad.outputs[:3])


def _take(node: ir.Node, values: Sequence[ir.Value]) -> None:
    """Let the outputs of a node take the places and names of other values."""
    for new, old in zip(node.outputs, values, strict=True):
        take_over(old, new)
