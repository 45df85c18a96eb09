"""A float32 model in another floating point type, without tracing the module again."""

from __future__ import annotations

import onnx
import onnx_ir as ir

_ALWAYS_FLOAT = {("Resize", 1), ("Resize", 2)}
"""Inputs that are float32 whatever type the operator works in."""


def recast(model: onnx.ModelProto, dtype: ir.DataType) -> onnx.ModelProto:
    """Inputs, weights, constants and casts to float32 become ``dtype``.

    That is what the exporter writes for a module that was moved to the type as a whole.
    """
    found = ir.from_proto(model)
    for value in found.graph.initializers.values():
        if value.const_value is not None and not _stays(value):
            value.const_value = _in(value.const_value, dtype)
            value.dtype = value.const_value.dtype
    computed = [value for node in found.graph for value in node.outputs]
    for value in [*found.graph.inputs, *computed]:
        if value.dtype == ir.DataType.FLOAT and not _stays(value):
            value.dtype = dtype
    for node in found.graph:
        to = node.attributes.get("to")
        if to is not None and to.as_int() == ir.DataType.FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", dtype)
        constant = node.attributes.get("value")
        if constant is not None and not _stays(node.outputs[0]):
            node.attributes["value"] = ir.AttrTensor("value", _in(constant.as_tensor(), dtype))
    return ir.to_proto(found)


def _stays(value: ir.Value) -> bool:
    return any((node.op_type, index) in _ALWAYS_FLOAT for node, index in value.uses())


def _in(tensor: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    if tensor.dtype != ir.DataType.FLOAT:
        return tensor
    return ir.tensor(tensor.numpy().astype(dtype.numpy()), dtype, name=tensor.name)
