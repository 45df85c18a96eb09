"""A model with every floating point type made double, to compare with differences."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph import schemas
from onnxtrain.graph.bindings import opset_of
from onnxtrain.graph.infer import infer
from onnxtrain.types import FLOATS, ONNX, DataType, op_name

_DOUBLE = "tensor(double)"
_TYPE_ATTRIBUTES = ("to", "dtype")
"""Attributes that hold an element type."""


def in_double(model: ir.Model) -> ir.Model:
    """Turn floating point inputs, weights, constants and casts into double, in place.

    Numbers that an operator takes as float only (the scales of Resize) stay as they are.

    Raises:
        GraphError: if an operator does not take doubles.
    """
    shapes: dict[ir.Value, ir.Shape | None] = {}
    for graph in model.graphs():
        for value in graph.initializers.values():
            _widen(value, model)
        for value in graph.inputs:
            if _is_float(value) and not value.is_initializer():
                value.type = ir.TensorType(DataType.DOUBLE)
        for node in graph:
            _rewrite(node)
            shapes |= {value: value.shape for value in node.outputs}
            _forget_types(node, schemas.get(node.domain, node.op_type, _version(node, model)))
    try:
        infer(model)
    except GraphError as error:
        raise GraphError(f"cannot turn the model into double\n  {error}") from error
    for value, shape in shapes.items():
        if value.shape is None:
            value.shape = shape
    _check(model)
    return model


def _check(model: ir.Model) -> None:
    """Every node must take the doubles that it is given now."""
    for node in model.graph.all_nodes():
        for index, value in enumerate(node.inputs):
            double = value is not None and value.dtype == DataType.DOUBLE
            if double and not _takes_double(node, index, model):
                raise GraphError(
                    f"cannot turn the model into double: node '{node.name}' "
                    f"({op_name(node.domain, node.op_type)}) does not take it as input {index}"
                )


def _version(node: ir.Node, model: ir.Model) -> int:
    return opset_of(node, model.graph.opset_imports)


def _is_float(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.dtype in FLOATS


def _widen(value: ir.Value, model: ir.Model) -> None:
    """Make a constant double, unless those who read it take float only."""
    tensor = value.const_value
    if tensor is None or tensor.dtype not in FLOATS:
        return
    takes = {_takes_double(node, index, model) for node, index in value.uses()}
    if takes == {False}:
        return
    if False in takes:
        raise GraphError(
            f"cannot turn '{value.name}' into double: some of its users take float only"
        )
    array = tensor.numpy().astype(np.float64)
    value.const_value = ir.tensor(array, name=value.name)
    value.type, value.shape = ir.TensorType(DataType.DOUBLE), ir.Shape(array.shape)


def _takes_double(node: ir.Node, index: int, model: ir.Model) -> bool:
    schema = schemas.get(node.domain, node.op_type, _version(node, model))
    if schema is None or not schema.inputs:
        return True
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    return _DOUBLE in formal.types


def _rewrite(node: ir.Node) -> None:
    """Let a node that names its type make double."""
    for name in _TYPE_ATTRIBUTES:
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.value in FLOATS:
            node.attributes[name] = ir.AttrInt64(name, DataType.DOUBLE)
    if node.domain == ONNX and node.op_type == "ConstantOfShape":
        _fill_double(node)


def _forget_types(node: ir.Node, schema: onnx.defs.OpSchema | None) -> None:
    """Types are inferred anew; those of an operator that nobody knows are set."""
    for value in node.outputs:
        if schema is not None:
            value.type = value.shape = None
        elif _is_float(value):
            value.type = ir.TensorType(DataType.DOUBLE)


def _fill_double(node: ir.Node) -> None:
    given = node.attributes.get("value")
    array = np.zeros(1, np.float32) if given is None else given.as_tensor().numpy()
    if given is None or given.as_tensor().dtype in FLOATS:
        tensor = ir.tensor(array.astype(np.float64))
        node.attributes["value"] = ir.AttrTensor("value", tensor)
