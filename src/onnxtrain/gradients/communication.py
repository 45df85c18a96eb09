"""Gradients of transfers: what was sent forwards is received backwards.

The process that sent data receives their gradient, and the one that received them sends it, with
the same tag and from the same peer. Data in whole numbers have no gradient and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import operands, output_of
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.gradients.signals import all_of
from onnxtrain.graph.builder import Ops
from onnxtrain.types import FLOATS, MS, DataType


@gradient("Send", domain=MS)
def send(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Receive the gradient of the data, once they were sent and the signal's gradient is there."""
    _, remote, *data = operands(node)
    kinds = _kinds(node)
    real = [index for index, kind in enumerate(kinds) if kind in FLOATS]
    if not real:
        return [dy, *[None] * (len(node.inputs) - 1)]
    ready = all_of(op, [node.outputs[0], dy])
    done, *found = op.Recv(
        ready, remote, **_options(node, real), _outputs=1 + len(real), _domain=MS
    )
    grads: list[Grad] = [None] * len(data)
    for index, grad in zip(real, found, strict=True):
        grad.type, grad.shape = data[index].type, data[index].shape
        grads[index] = grad
    return [done, None, *grads]


@gradient("Recv", domain=MS, all_outputs=True)
def recv(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """Send the gradient of the data, zeros for those that nobody used."""
    kinds = _kinds(node)
    real = [index for index, kind in enumerate(kinds) if kind in FLOATS]
    every = [*dys, *[None] * (1 + len(kinds) - len(dys))]
    signal, grads = every[0], every[1:]
    if not real:
        return [signal, None]
    done = output_of(node, 0, "_done", DataType.BOOL, ir.Shape([]))
    given: list[ir.Value] = []
    for index in real:
        data = output_of(node, 1 + index, f"_{index}", kinds[index])
        grad = grads[index]
        given.append(op.filled(0, shape_of=data, like=data) if grad is None else grad)
    ready = all_of(op, [done] if signal is None else [done, signal])
    sent = op.Send(ready, node.inputs[1], *given, **_options(node, real), _domain=MS)
    return [sent, None]


def _kinds(node: ir.Node) -> list[DataType]:
    return [DataType(code) for code in attribute(node, "element_types", ())]


def _options(node: ir.Node, real: Sequence[int]) -> dict[str, object]:
    codes = attribute(node, "element_types", ())
    return {
        "tag": attribute(node, "tag", 0),
        "element_types": [codes[index] for index in real],
    }
