"""Cross entropy and its gradient in one operator, which reads the scores once.

The log probabilities between the two, as large as the scores, are then never written.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.edit import detach, take_over
from onnxtrain.types import MS, ONNX, OWN

_GRADIENTS = {
    (ONNX, "SoftmaxCrossEntropyLoss"): "SoftmaxCrossEntropyLossGrad",
    (MS, "SoftmaxCrossEntropyLossInternal"): "SoftmaxCrossEntropyLossInternalGrad",
}
_IGNORED = 3
"""Where the label that does not count stands among the inputs, if it is not an attribute."""


def join_losses(model: ir.Model) -> int:
    """Join every loss whose log probabilities only its gradient reads; gives their number."""
    graph = model.graph
    found = [node for node in graph if (node.domain, node.op_type) in _GRADIENTS]
    pairs = [(node, grad) for node in found if (grad := _gradient_of(node)) is not None]
    for node, grad in pairs:
        _join(graph, node, grad)
    if pairs:
        graph.remove([node for pair in pairs for node in detach(*pair)], safe=True)
        graph.opset_imports.setdefault(OWN, 1)
    return len(pairs)


def _gradient_of(node: ir.Node) -> ir.Node | None:
    """The one reader of the log probabilities, if it is the gradient of this loss."""
    if len(node.outputs) < 2 or node.outputs[1].is_graph_output():
        return None
    readers = [use.node for use in node.outputs[1].uses()]
    if len(readers) != 1:
        return None
    grad = readers[0]
    wanted = _GRADIENTS[node.domain, node.op_type]
    if (grad.domain, grad.op_type) != (MS, wanted) or grad.inputs[2] is not node.inputs[1]:
        return None
    if _input(grad, 5) is not None or _given(node, "reduction") != _given(grad, "reduction"):
        return None
    dy = grad.inputs[0]
    if dy is None or dy.producer() is not None:
        return None  # it may depend on the loss itself
    weights = _input(node, 2)
    if weights is not None and _input(grad, 3) is not weights:
        return None
    if _ignored(node) != _ignored(grad, shift=1):
        return None
    return grad if grad.outputs[0].dtype == _type(node.inputs[0]) else None


def _join(graph: ir.Graph, node: ir.Node, grad: ir.Node) -> None:
    scores, labels = node.inputs[:2]
    loss, d_scores = node.outputs[0], grad.outputs[0]
    ignored = _ignored(node)
    given: dict[str, str | int] = {
        "reduction": _given(node, "reduction") or "mean",
        "ignore_index": -1 if ignored is None else ignored,
    }
    if loss.dtype is not None:
        given["output_type"] = int(loss.dtype)
    joined = ir.node(
        "CrossEntropyWithGrad",
        [scores, labels, grad.inputs[0], _input(node, 2)],
        given,
        domain=OWN,
        num_outputs=2,
        name=f"{node.name}_WithGrad",
    )
    graph.insert_before(node, joined)
    for new, old in zip(joined.outputs, (d_scores, loss), strict=True):
        take_over(old, new)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _type(value: ir.Value | None) -> ir.DataType | None:
    return None if value is None else value.dtype


def _given(node: ir.Node, name: str) -> str | None:
    attribute = node.attributes.get(name)
    return None if attribute is None else attribute.as_string()


def _ignored(node: ir.Node, shift: int = 0) -> int | None:
    """The label that does not count: an attribute, or a constant input; None for the default."""
    attribute = node.attributes.get("ignore_index")
    if attribute is not None:
        return attribute.as_int()
    value = _input(node, _IGNORED + shift) if node.domain == MS else None
    tensor = None if value is None else value.const_value
    return None if tensor is None else int(tensor.numpy().reshape(-1)[0])
