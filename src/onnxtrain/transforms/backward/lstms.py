"""An LSTM that keeps its gates, and its gradient, as two operators that keep what they want."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.edit import detach, sole_reader, take_over
from onnxtrain.types import MS, OWN, DataType

_INPUTS = (0, 1, 2, 3, 5, 6)
"""Those of LSTMTraining that may be there: no lengths, no peepholes."""
_LENGTHS, _PEEPHOLES = 4, 7
_FINALS = ("h", "c")
_KNOWN = {"direction", "hidden_size"}
"""Attributes of a plain layer; all others change what it computes."""


def join_lstms(model: ir.Model) -> int:
    """Join every plain float32 layer with its gradient; gives their number."""
    graph = model.graph
    found = [(node, grad) for node in graph if (grad := _gradient(node)) is not None]
    for layer, grad in found:
        _join(graph, layer, grad)
        graph.remove(list(detach(layer, grad)), safe=True)
    if found:
        graph.opset_imports.setdefault(OWN, 1)
    return len(found)


def _gradient(layer: ir.Node) -> ir.Node | None:
    """The one reader of a layer's cells and gates, if it is the layer's gradient."""
    if (layer.domain, layer.op_type) != (MS, "LSTMTraining") or len(layer.outputs) < 5:
        return None
    given = _given(layer, 8)
    if not {*layer.attributes} <= _KNOWN:
        return None
    if given[0] is None or given[0].dtype != DataType.FLOAT:
        return None
    if given[_LENGTHS] is not None or given[_PEEPHOLES] is not None:
        return None
    grad = sole_reader(layer.outputs[3])
    if grad is None or grad is not sole_reader(layer.outputs[4]) or grad.op_type != "LSTMGrad":
        return None
    read = _given(grad, 13)
    same = [*given[:3], None, given[5], given[6], layer.outputs[0], *layer.outputs[3:5]]
    right = all(a is b for a, b in zip(read[:9], same, strict=True)) and read[12] is None
    alike = grad.attributes == layer.attributes and grad.graph is layer.graph
    return grad if right and alike else None


def _given(node: ir.Node, count: int) -> list[ir.Value | None]:
    return [*node.inputs, *[None] * count][:count]


def _join(graph: ir.Graph, layer: ir.Node, grad: ir.Node) -> None:
    given, read = _given(layer, 8), _given(grad, 13)
    inputs = [given[index] for index in _INPUTS]
    direction = [a for name, a in layer.attributes.items() if name == "direction"]
    forward = ir.Node(OWN, "LSTMLayer", inputs, direction, num_outputs=5, name=layer.name)
    graph.insert_before(layer, forward)
    names = [value.name for value in layer.outputs]
    for old, new in zip(layer.outputs, forward.outputs, strict=True):
        take_over(old, new)
    for index, word in enumerate(_FINALS, 1):
        final = forward.outputs[index]
        final.name = names[index] or f"{names[3]}_{word}_final"
        final.type = ir.TensorType(DataType.FLOAT)
    for kept in forward.outputs[3:]:
        kept.type, kept.shape = ir.TensorType(DataType.UINT8), None
    backward = ir.Node(
        OWN,
        "LSTMLayerGrad",
        [*inputs, *forward.outputs, *read[9:12]],
        direction,
        num_outputs=6,
        name=grad.name,
    )
    graph.insert_before(grad, backward)
    for old, new in zip(grad.outputs, backward.outputs, strict=False):
        take_over(old, new)
