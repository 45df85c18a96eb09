"""A model with every floating point type made one, mostly double, to compare with differences."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph import schemas
from onnxtrain.graph.bindings import opset_of
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.inference.infer import infer
from onnxtrain.transforms.weights.places import final_uses, is_mover
from onnxtrain.types import FLOATS, ML, ONNX, DataType, dtype_name, op_name

_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "output_dtype", "softmax_precision")
"""Attributes that hold an element type."""
_FLOAT_UNLESS_TOLD = {
    "BlackmanWindow": "output_datatype",
    "HammingWindow": "output_datatype",
    "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "RandomNormal": "dtype",
    "RandomUniform": "dtype",
    "SequenceEmpty": "dtype",
}
"""Operators that make float where this attribute is missing."""


def in_double(model: ir.Model) -> ir.Model:
    """Turn floating point inputs, weights, constants and casts into double, in place."""
    return in_type(model, DataType.DOUBLE)


def in_type(model: ir.Model, dtype: DataType, weights: Collection[str] = ()) -> ir.Model:
    """Turn floating point inputs, weights, constants and casts into one type, in place.

    What operators do not take in that type (the scales of Resize) they read as it is; a constant
    that others read too is copied for them.

    Args:
        model: The model.
        dtype: The type.
        weights: Constants that are moved, of which there must be one for all who read it.

    Raises:
        GraphError: if an operator does not take the type.
    """
    shapes: dict[ir.Value, ir.Shape | None] = {}
    for graph in model.graphs():
        for value in list(graph.initializers.values()):
            if value.name not in weights and value.dtype in FLOATS:
                _copy_apart(value, graph, dtype, model)
            _convert(value, dtype, model)
        for value in graph.inputs:
            _convert_input(value, dtype, model)
        for node in graph:
            _rewrite(node, dtype)
            shapes |= {value: value.shape for value in node.outputs}
            known = schemas.get(node.domain, node.op_type, _version(node, model))
            _forget_types(node, known, dtype)
    try:
        infer(model)
    except GraphError as error:
        raise GraphError(f"cannot turn the model into {dtype_name(dtype)}\n  {error}") from error
    for value, shape in shapes.items():
        if value.shape is None:
            value.shape = shape
    _check(model, dtype)
    return model


def _check(model: ir.Model, dtype: DataType) -> None:
    """Every node must take the type that it is given now."""
    for node in model.graph.all_nodes():
        for index, value in enumerate(node.inputs):
            given = value is not None and value.dtype == dtype
            if given and not _takes(node, index, dtype, model):
                raise GraphError(
                    f"cannot turn the model into {dtype_name(dtype)}: node '{node.name}' "
                    f"({op_name(node.domain, node.op_type)}) does not take it as input {index}"
                )
        if node.domain == ML and dtype != DataType.FLOAT and _narrows(node, dtype):
            raise GraphError(
                f"cannot turn the model into {dtype_name(dtype)}: node '{node.name}' "
                f"({op_name(node.domain, node.op_type)}) gives float whatever it is given"
            )


def _narrows(node: ir.Node, dtype: DataType) -> bool:
    given = any(value is not None and value.dtype == dtype for value in node.inputs)
    return given and any(value.dtype == DataType.FLOAT for value in node.outputs)


def _version(node: ir.Node, model: ir.Model) -> int:
    return opset_of(node, model.graph.opset_imports)


def _retyped(type_: ir.TypeProtocol | None, dtype: DataType) -> ir.TypeProtocol | None:
    """A type with floating point elements, with elements of another type; others as they are."""
    if isinstance(type_, (ir.SequenceType, ir.OptionalType)):
        inner = _retyped(type_.elem_type, dtype)
        return type_ if inner is type_.elem_type else type(type_)(inner)  # type: ignore[arg-type]
    if isinstance(type_, ir.TensorType) and type_.dtype in FLOATS:
        return ir.TensorType(dtype)
    return type_


def _taken(value: ir.Value, dtype: DataType, model: ir.Model) -> bool:
    """Whether those who read a value take it in a type.

    Raises:
        GraphError: if some do and some do not.
    """
    takes = {_takes(node, index, dtype, model) for node, index in final_uses(value)}
    if takes == {True, False}:
        raise GraphError(
            f"cannot turn '{value.name}' into {dtype_name(dtype)}: "
            "some of its users take float only"
        )
    return takes != {False}


def _copy_apart(value: ir.Value, graph: ir.Graph, dtype: DataType, model: ir.Model) -> None:
    """Let those who do not take a constant in a type, unlike others, read a copy of it."""
    tensor = value.const_value
    takes = {use: _ends_in(*use, dtype, model) for use in value.uses()}
    if tensor is None or True not in takes.values():
        return
    copy: ir.Value | None = None
    for (node, index), taken in takes.items():
        if not taken:
            if copy is None:
                name = unique_name(model.graph, f"{value.name}_{dtype_name(tensor.dtype)}")
                copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=tensor)
                graph.initializers.add(copy)
            node.replace_input_with(index, copy)


def _ends_in(node: ir.Node, index: int, dtype: DataType, model: ir.Model) -> bool:
    """Whether any who compute with an input of a node, behind what moves it, take it in a type."""
    behind = list(final_uses(node.outputs[0])) if is_mover(node) and not index else []
    return any(_takes(*use, dtype, model) for use in behind or [(node, index)])


def _convert_input(value: ir.Value, dtype: DataType, model: ir.Model) -> None:
    made = _retyped(value.type, dtype)
    if made is not value.type and not value.is_initializer() and _taken(value, dtype, model):
        value.type = made


def _convert(value: ir.Value, dtype: DataType, model: ir.Model) -> None:
    """Convert a constant, unless those who read it do not take the type."""
    tensor = value.const_value
    if tensor is None or tensor.dtype not in FLOATS or not _taken(value, dtype, model):
        return
    array = tensor.numpy().astype(dtype.numpy())
    value.const_value = ir.tensor(array, name=value.name)
    value.type, value.shape = ir.TensorType(dtype), ir.Shape(array.shape)


def _takes(node: ir.Node, index: int, dtype: DataType, model: ir.Model) -> bool:
    """Whether a node takes an input in a type; whole numbers, behind a Cast, stay as they are."""
    read = node.inputs[index]
    if read is not None and read.dtype is not None and read.dtype not in FLOATS:
        return True
    schema = schemas.get(node.domain, node.op_type, _version(node, model))
    if schema is None or not schema.inputs:
        return True
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    return any(f"tensor({dtype_name(dtype)})" in text for text in formal.types)


def _rewrite(node: ir.Node, dtype: DataType) -> None:
    """Let a node that names its type, or makes float by itself, make another one."""
    named = _FLOAT_UNLESS_TOLD.get(node.op_type) if node.domain == ONNX else None
    if named is not None and named not in node.attributes:
        node.attributes[named] = ir.AttrInt64(named, dtype)
    for name in _TYPE_ATTRIBUTES:
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.value in FLOATS:
            node.attributes[name] = ir.AttrInt64(name, dtype)
    if node.domain == ONNX and node.op_type == "ConstantOfShape":
        _refill(node, dtype)


def _forget_types(node: ir.Node, schema: onnx.defs.OpSchema | None, dtype: DataType) -> None:
    """Types are inferred anew; those of an operator that nobody knows are set."""
    for value in node.outputs:
        if schema is not None:
            value.type = value.shape = None
        else:
            value.type = _retyped(value.type, dtype)


def _refill(node: ir.Node, dtype: DataType) -> None:
    given = node.attributes.get("value")
    array = np.zeros(1, np.float32) if given is None else given.as_tensor().numpy()
    if given is None or given.as_tensor().dtype in FLOATS:
        tensor = ir.tensor(array.astype(dtype.numpy()))
        node.attributes["value"] = ir.AttrTensor("value", tensor)
