"""Gradients by VectorJacobian: one operator for all that have no gradient operator of their own."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtrain.errors import NoGradientError
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.bindings import opset_of
from onnxtrain.graph.builder import Ops
from onnxtrain.types import FLOATS, OWN, op_name

_PLAIN = frozenset(
    {
        ir.AttributeType.FLOAT,
        ir.AttributeType.FLOATS,
        ir.AttributeType.INT,
        ir.AttributeType.INTS,
        ir.AttributeType.STRING,
        ir.AttributeType.STRINGS,
    }
)


def pulled_back(
    op: Ops, node: ir.Node, dys: Sequence[Grad], unread: Collection[int] = ()
) -> list[Grad]:
    """Gradients of the inputs of any node whose kernel torch can differentiate.

    Inputs that are ``unread`` are left out: the kernel gives the same without them.
    """
    values = [None if index in unread else value for index, value in enumerate(node.inputs)]
    inputs, outputs = len(node.inputs), len(node.outputs)
    version = opset_of(node, op.graph.opset_imports)
    options: dict[str, Any] = {
        "of": node.op_type,
        "of_domain": node.domain,
        "version": version,
        "taken": inputs,
        "given": outputs,
        "options": _written(node),
    }
    return _emitted(op, values, [*dys, *[None] * (outputs - len(dys))], options, order=1)


def _written(node: ir.Node) -> str:
    """The attributes of a node as text."""
    for name, attr in node.attributes.items():
        if attr.type not in _PLAIN:
            raise NoGradientError(
                f"no gradient of {op_name(node.domain, node.op_type)} with attribute '{name}' of "
                f"type {attr.type.name}, node '{node.name}'"
            )
    return json.dumps({name: _stored(attr.value) for name, attr in node.attributes.items()})


def _stored(value: Any) -> Any:
    """A value as a model keeps it: floating point ones in float32."""
    if isinstance(value, (list, tuple)):
        return [_stored(item) for item in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def _emitted(
    op: Ops,
    values: Sequence[Grad],
    dys: Sequence[Grad],
    options: dict[str, Any],
    order: int,
) -> list[Grad]:
    """A node with one output for each value."""
    count = len(values)
    found = op.VectorJacobian(*values, *dys, **options, order=order, _outputs=count, _domain=OWN)
    grads = [found] if isinstance(found, ir.Value) else found
    return [
        grad if value is not None and value.dtype in FLOATS else None
        for value, grad in zip(values, grads, strict=True)
    ]


@gradient("VectorJacobian", domain=OWN, all_outputs=True)
def vector_jacobian(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """The same one order higher: its values and the gradients that came in are its inputs."""
    order = attribute(node, "order", 1)
    inputs, outputs = attribute(node, "taken", 0), attribute(node, "given", 0)
    for _ in range(order):
        inputs, outputs = inputs + outputs, inputs
    values = [*node.inputs, *[None] * (inputs - len(node.inputs))]
    incoming = [*gs, *[None] * (outputs - len(gs))]
    options = {name: attr for name, attr in node.attributes.items() if name != "order"}
    return _emitted(op, values, incoming, options, order + 1)[: len(node.inputs)]
