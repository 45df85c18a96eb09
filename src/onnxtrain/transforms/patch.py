"""New values in a protobuf model, of which nothing else changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnxtrain.errors import ParameterError
from onnxtrain.graph import maps
from onnxtrain.graph.bodies import body_tensors, proto_bodies, proto_subgraphs
from onnxtrain.graph.loading.external import Content
from onnxtrain.graph.order import ordered
from onnxtrain.transforms.weights.attribute_weights import (
    AttributeWeight,
    attribute_weights,
    first_output,
)
from onnxtrain.transforms.write_back import check_value
from onnxtrain.types import ML, ONNX, DataType

_DATA = (
    "raw_data",
    "float_data",
    "int32_data",
    "int64_data",
    "double_data",
    "uint64_data",
    "external_data",
    "data_location",
)
"""Where a tensor may hold its value."""


def patched(
    model: onnx.ModelProto,
    values: Mapping[str, npt.NDArray[Any]],
    files: Mapping[str, Content] | None = None,
) -> onnx.ModelProto:
    """A copy of a model with new values of some initializers and Constant nodes.

    Args:
        model: The model.
        values: New values by name.
        files: Contents of files with external data by their locations; the copy has it inside.

    Raises:
        ParameterError: if the model has no such tensor, or one of another type or shape.
    """
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    tensors, constants = _holders(copied.graph)
    bodies = {place: _holders(body) for place, body in proto_bodies(copied)}
    learned = any(node.domain == ML for node in model.graph.node)
    read = ordered(maps.read(model)) if bodies or learned else None
    for one in body_tensors(read) if read is not None else ():
        inner, fixed = bodies[one.place]
        if one.value.name in inner:
            tensors[one.name] = inner[one.value.name]
        else:
            constants[one.name] = fixed[str(one.value.name)]
    for weight in attribute_weights(read) if read is not None else ():
        constants[weight.name] = _attribute(copied, weight)
    for name, array in values.items():
        if name in tensors:
            _set(tensors[name], name, array)
        elif name in constants:
            _set_attribute(constants[name], name, array)
        else:
            raise ParameterError(f"the model has no tensor '{name}' to write back")
    for tensor in _all_tensors(copied):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _hold(tensor, _outside(tensor, files or {}))
    return copied


def _attribute(model: onnx.ModelProto, weight: AttributeWeight) -> onnx.AttributeProto:
    """Where a protobuf holds a weight that is an attribute."""
    place, output = weight.owner
    graph = dict(proto_subgraphs(model.graph))[place] if place else model.graph
    node = next(node for node in graph.node if first_output(iter(node.output)) == output)
    (found,) = [attribute for attribute in node.attribute if attribute.name == weight.key]
    assert isinstance(found, onnx.AttributeProto)
    return found


def _holders(
    graph: onnx.GraphProto | onnx.FunctionProto,
) -> tuple[dict[str, onnx.TensorProto], dict[str, onnx.AttributeProto]]:
    """The initializers of a graph (a function has none) and the values of its Constant nodes."""
    constants = {
        node.output[0]: node.attribute[0]
        for node in graph.node
        if node.op_type == "Constant" and node.domain in (ONNX, "ai.onnx")
        if not node.attribute[0].ref_attr_name
    }
    tensors = graph.initializer if isinstance(graph, onnx.GraphProto) else ()
    return {tensor.name: tensor for tensor in tensors}, constants


def _set(tensor: onnx.TensorProto, name: str, array: npt.NDArray[Any]) -> None:
    dtype = DataType(tensor.data_type)
    check_value(name, array, dtype, tuple(tensor.dims))
    _hold(tensor, ir.Tensor(array, dtype).tobytes())


def _hold(tensor: onnx.TensorProto, data: bytes) -> None:
    """Let a tensor hold its value as bytes, in whichever way it held it before."""
    located = tensor.HasField("data_location")
    for field in _DATA:
        tensor.ClearField(field)  # type: ignore[arg-type]
    tensor.raw_data = data
    if located:  # readers of external data leave the field behind, so a comparison finds it equal
        tensor.data_location = onnx.TensorProto.DEFAULT


def _outside(tensor: onnx.TensorProto, files: Mapping[str, Content]) -> bytes:
    """What a tensor holds in another file."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    begin = int(told.get("offset") or 0)
    size = math.prod(tensor.dims) * DataType(tensor.data_type).bitwidth
    length = int(told.get("length") or 0) or math.ceil(size / 8)
    return bytes(files[told["location"]][begin : begin + length])


def _set_attribute(attribute: onnx.AttributeProto, name: str, array: npt.NDArray[Any]) -> None:
    """Give an attribute a value; a number or a list of numbers stays one."""
    if attribute.HasField("t"):
        _set(attribute.t, name, array)
    elif attribute.name == "value_float":
        check_value(name, array, DataType.FLOAT, ())
        attribute.f = float(array)
    elif attribute.floats:
        check_value(name, array, DataType.FLOAT, (len(attribute.floats),))
        attribute.floats[:] = array.tolist()
    else:
        raise ParameterError(
            f"Constant '{name}' holds its value as '{attribute.name}', not as numbers"
        )


def _all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: initializers and attributes, also those of subgraphs."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _tensors_of_node(node)


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from _tensors_of_node(node)


def _tensors_of_node(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from _tensors_of_graph(attribute.g)
        for graph in attribute.graphs:
            yield from _tensors_of_graph(graph)
