"""What real values stand behind quantized ones: whole numbers have no gradient of their own."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.types import MS, ONNX

_QUANTIZERS = ("DynamicQuantizeLinear", "QuantizeLinear")
_PRODUCTS = ("ConvInteger", "MatMulInteger")


def quantizer_of(node: ir.Node) -> ir.Node | None:
    """The quantizer whose rounding a DequantizeLinear undoes, if one stands right before it."""
    return _quantizer(node.inputs[0]) if _is_known(node, "DequantizeLinear") else None


def product_of(node: ir.Node) -> ir.Node | None:
    """The product of whole numbers that a Cast makes real."""
    if not _is_known(node, "Cast") or node.inputs[0] is None:
        return None
    before = node.inputs[0].producer()
    return before if before is not None and _is_known(before, *_PRODUCTS) else None


def factor_quantizers(node: ir.Node) -> list[ir.Node | None]:
    """The quantizers of both factors of a product of whole numbers."""
    return [_quantizer(value) for value in node.inputs[:2]]


def _quantizer(value: ir.Value | None) -> ir.Node | None:
    before = None if value is None else value.producer()
    return before if before is not None and _is_known(before, *_QUANTIZERS) else None


def _is_known(node: ir.Node, *op_types: str) -> bool:
    return node.op_type in op_types and node.domain in (ONNX, MS)


def behind(node: ir.Node) -> list[ir.Value]:
    """Values that a node's gradient goes to although it does not read them itself."""
    product = node if _is_known(node, "MatMulIntegerToFloat") else product_of(node)
    found = [quantizer_of(node)] if product is None else factor_quantizers(product)
    return [value for one in found if one is not None for value in _real_inputs(one)]


def _real_inputs(node: ir.Node) -> list[ir.Value]:
    """What a quantizer rounds, and the scale if it is given one."""
    values = node.inputs[:2] if node.op_type == "QuantizeLinear" else node.inputs
    return [value for value in values if value is not None]
