"""Put trained values back into the original model, leaving everything else as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.errors import ParameterError
from onnxtrain.graph.bodies import body_tensors
from onnxtrain.transforms.weights.attribute_weights import AttributeWeight, attribute_weights
from onnxtrain.types import ONNX, DataType, dtype_name


def weight_names(model: ir.Model) -> set[str]:
    """Tensors that can be written back: initializers and outputs of Constant nodes.

    Those in the bodies of nodes and functions have names of their own, see ``graph.bodies``, and so
    have weights in attributes, see ``attribute_weights``.
    """
    inside = {one.name for one in body_tensors(model)}
    inside |= {one.name for one in attribute_weights(model)}
    return set(model.graph.initializers) | set(_constants(model.graph)) | inside


def write_back(model: ir.Model, values: Mapping[str, npt.NDArray[Any]]) -> ir.Model:
    """Overwrite initializers and Constant nodes by name, in place.

    Raises:
        ParameterError: if the model has no such tensor, or one of another type or shape.
    """
    initializers = dict(model.graph.initializers)
    constants = _constants(model.graph)
    for one in body_tensors(model):
        producer = one.value.producer()
        if producer is None:
            initializers[one.name] = one.value
        else:
            constants[one.name] = producer
    attributes = {one.name: one for one in attribute_weights(model)}
    for name, array in values.items():
        if name in initializers:
            value = initializers[name]
            value.const_value = _like(name, array, value.const_value)
        elif name in constants:
            _overwrite(constants[name], name, array)
        elif name in attributes:
            _overwrite_attribute(attributes[name], array)
        else:
            raise ParameterError(f"the model has no tensor '{name}' to write back")
    return model


def _constants(graph: ir.Graph) -> dict[str, ir.Node]:
    return {
        str(node.outputs[0].name): node
        for node in graph
        if node.domain == ONNX and node.op_type == "Constant"
    }


def _overwrite(node: ir.Node, name: str, array: npt.NDArray[Any]) -> None:
    """Give a Constant node a value; a number or a list of numbers stays one."""
    (attribute,) = node.attributes.values()
    key, doc = attribute.name, attribute.doc_string
    if key == "value":
        tensor = _like(name, array, attribute.as_tensor())
        node.attributes[key] = ir.AttrTensor(key, tensor, doc)
    elif key == "value_float":
        check_value(name, array, DataType.FLOAT, ())
        node.attributes[key] = ir.AttrFloat32(key, float(array), doc)
    elif key == "value_floats":
        check_value(name, array, DataType.FLOAT, (len(attribute.as_floats()),))
        node.attributes[key] = ir.AttrFloat32s(key, array.tolist(), doc)
    else:
        raise ParameterError(f"Constant '{name}' holds its value as '{key}', not as numbers")


def _overwrite_attribute(one: AttributeWeight, array: npt.NDArray[Any]) -> None:
    """Give a node other numbers; a list of numbers stays one."""
    tensor = _like(one.name, array, one.tensor)
    old = one.node.attributes[one.key]
    if old.type == ir.AttributeType.TENSOR:
        one.node.attributes[one.key] = ir.AttrTensor(one.key, tensor, old.doc_string)
    else:
        one.node.attributes[one.key] = ir.AttrFloat32s(one.key, array.tolist(), old.doc_string)


def _like(name: str, array: npt.NDArray[Any], old: ir.TensorProtocol | None) -> ir.TensorProtocol:
    """A tensor of new values with the name and the notes of an old one."""
    if old is None:
        return ir.tensor(array, name=name)
    check_value(name, array, old.dtype, tuple(old.shape.numpy()))
    tensor = ir.Tensor(array, old.dtype, name=old.name, doc_string=old.doc_string)
    tensor.metadata_props.update(getattr(old, "metadata_props", {}))
    return tensor


def check_value(
    name: str, array: npt.NDArray[Any], dtype: DataType, shape: tuple[int, ...]
) -> None:
    """A new value must fit.

    Raises:
        ParameterError: if it has another type or shape than the tensor of the model.
    """
    if array.shape != shape or np.dtype(array.dtype) != dtype.numpy():
        raise ParameterError(
            f"tensor '{name}' of the model is {dtype_name(dtype)} {list(shape)}, "
            f"cannot take {array.dtype} {list(array.shape)}"
        )
