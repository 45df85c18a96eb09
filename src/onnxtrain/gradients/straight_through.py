"""What real values stand behind quantized ones: whole numbers have no gradient of their own."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.types import MS, ONNX

_QUANTIZERS = ("DynamicQuantizeLinear", "QuantizeLinear")


def quantizer_of(node: ir.Node) -> ir.Node | None:
    """The quantizer whose rounding a DequantizeLinear undoes, if one stands right before it."""
    if not _is_known(node, "DequantizeLinear") or node.inputs[0] is None:
        return None
    before = node.inputs[0].producer()
    return before if before is not None and _is_known(before, *_QUANTIZERS) else None


def _is_known(node: ir.Node, *op_types: str) -> bool:
    return node.op_type in op_types and node.domain in (ONNX, MS)


def behind(node: ir.Node) -> list[ir.Value]:
    """Values that a node's gradient goes to although it does not read them itself."""
    before = quantizer_of(node)
    if before is None:
        return []
    values = before.inputs[:2] if before.op_type == "QuantizeLinear" else before.inputs
    return [value for value in values if value is not None]
