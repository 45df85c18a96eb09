"""act(gate)·up, the middle of a gated layer: SwiGLU, GeGLU, ReGLU, and GLU with a sigmoid.

Neither the activation nor its product with a gradient is kept; both are computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onnxtrain.graph.bindings import same_shape
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.reading import made_by, only_reader, pairs
from onnxtrain.types import MS, ONNX, OWN


def match(product: ir.Node) -> Match | None:
    """The product of an activation that nobody else reads and of a value of its shape."""
    for activated, up in pairs(product):
        node = activated.producer()
        form = None if node is None or node.graph is not product.graph else _form(node)
        if node is None or form is None or up is activated or only_reader(activated, "Mul") is None:
            continue
        gate = node.inputs[0]
        assert gate is not None
        if not same_shape(gate, up) or gate.dtype != up.dtype:
            _refuse_unknown(gate, up)
            continue
        if node.op_type == "Relu" and made_by(gate, "BatchNormalization") is not None:
            raise Refusal("the Relu is computed together with the normalization before it")
        return Match((node, product), _emitter(gate, up, form))
    return None


def _form(node: ir.Node) -> dict[str, Any] | None:
    """How the activation is computed that a node is; None if it is no such activation."""
    if len([value for value in node.inputs if value is not None]) != 1:
        return None
    kind = (node.domain, node.op_type)
    if kind in ((ONNX, "Sigmoid"), (ONNX, "Relu")):
        return {"activation": node.op_type.lower()}
    if kind == (MS, "QuickGelu"):
        return {"activation": "swish", "alpha": node.attributes.get_float("alpha", None)}
    if kind == (MS, "FastGelu"):
        return {"activation": "gelu_tanh"}
    if kind in ((ONNX, "Gelu"), (MS, "Gelu")):
        tanh = node.attributes.get_string("approximate", "none") == "tanh"
        return {"activation": "gelu_tanh" if tanh else "gelu"}
    return None


def _refuse_unknown(gate: ir.Value, up: ir.Value) -> None:
    """Values that may have one shape or not; one that is stretched is nothing alike."""
    if gate.shape is None or up.shape is None:
        raise Refusal("the shapes of the gate and of its factor are not known")
    if len(gate.shape) != len(up.shape):
        return
    sizes = list(zip(gate.shape, up.shape, strict=True))
    if all(a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in sizes):
        raise Refusal("only a run can tell whether the gate and its factor have one shape")


def _emitter(gate: ir.Value, up: ir.Value, form: dict[str, Any]) -> Callable[[Ops], ir.Value]:
    return lambda op: op.Gated(gate, up, **form, _domain=OWN)


PATTERN = Pattern("Gated", frozenset({"Mul"}), match)
