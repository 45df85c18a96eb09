"""Models with maps, for which onnx-ir has no type.

A value that is a map has no type in an onnx-ir model; inputs and outputs of the model remember it
aside. Nothing else depends on it: only a few operators of ai.onnx.ml make or take maps, whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

KEY = "onnxtrain.map_type"


def read(proto: onnx.ModelProto) -> ir.Model:
    """The onnx-ir model of a protobuf that may have maps."""
    types = {
        value.name: value.type.SerializeToString()
        for value in _values(proto.graph)
        if _is_map(value.type)
    }
    if not types:
        return ir.serde.deserialize_model(proto)
    plain = onnx.ModelProto()
    plain.CopyFrom(proto)
    for value in _values(plain.graph):
        if value.name in types:
            value.ClearField("type")
    model = ir.serde.deserialize_model(plain)
    for known in _ends(model.graph):
        if known.name in types:
            known.meta[KEY] = types[known.name]
    return model


def written(model: ir.Model) -> onnx.ModelProto:
    """The protobuf of an onnx-ir model, with the types of maps that it takes or gives."""
    proto = ir.serde.serialize_model(model)
    declare(proto, model)
    return proto


def declare(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Write the types of maps that a model takes or gives into its protobuf."""
    types = {value.name: value.meta[KEY] for value in _ends(model.graph) if KEY in value.meta}
    if types:
        for value in (*proto.graph.input, *proto.graph.output):
            if value.name in types:
                value.type.ParseFromString(types[value.name])


def type_and_shape(proto: onnx.TypeProto) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """A type in protobuf as onnx-ir has it; a map has none."""
    if _is_map(proto):
        return None, None
    return (
        ir.serde.deserialize_type_proto_for_type(proto),
        ir.serde.deserialize_type_proto_for_shape(proto),
    )


def _ends(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from (*graph.inputs, *graph.outputs)


def _values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.output, *graph.value_info)


def _is_map(type_: onnx.TypeProto) -> bool:
    """Whether a type is a map, or a sequence of them."""
    if type_.HasField("sequence_type"):
        return _is_map(type_.sequence_type.elem_type)
    return bool(type_.HasField("map_type"))
