"""A model as the protobuf that ONNX's inference reads: nodes, names, types and constants.

Descriptions are left out, and equal types are written once and copied, which takes two thirds of
the time that writing the whole model takes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import onnx
import onnx_ir as ir

from onnxtrain.graph import maps
from onnxtrain.graph.bindings import kind
from onnxtrain.graph.edit import declare_constant
from onnxtrain.types import DataType

SMALL = 1024
"""Initializers of at most this many bytes keep their value during inference (shapes, axes)."""


def skeleton(model: ir.Model, small: float = SMALL) -> onnx.ModelProto:
    """What inference reads of a model; larger initializers are inputs, whose type is enough."""
    if model.functions:
        return maps.written(model)
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in sorted(model.opset_imports.items()):
        proto.opset_import.add(domain=domain, version=version)
    _Writer(proto.graph, small).graph(model.graph)
    maps.declare(proto, model)
    return proto


class _Writer:
    """Writes one graph; bodies of nodes are written by onnx-ir."""

    def __init__(self, proto: onnx.GraphProto, small: float) -> None:
        self._proto = proto
        self._small = small
        self._types: dict[Hashable, onnx.TypeProto] = {}

    def graph(self, graph: ir.Graph) -> None:
        """Write inputs, constants, nodes and outputs."""
        proto = self._proto
        proto.name = graph.name or ""
        self._values(proto.input, graph.inputs)
        for value in graph.initializers.data.values():
            self._initializer(value)
        for node in graph:
            self._node(node)
            made = [v for v in node.outputs if v.name and not v.is_graph_output()]
            self._values(proto.value_info, [v for v in made if v.type is not None])
        self._values(proto.output, graph.outputs)

    def _initializer(self, value: ir.Value) -> None:
        tensor = value.const_value
        if tensor is not None and tensor.nbytes > self._small and not value.is_graph_input():
            declare_constant(value)
            self._values(self._proto.input, [value])
            return
        if value.type is not None and not value.is_graph_input():
            self._values(self._proto.value_info, [value])
        if tensor is None:
            return
        proto = self._proto.initializer.add()
        if tensor.dtype == DataType.STRING or isinstance(tensor, ir.ExternalTensor):
            ir.serde.serialize_tensor_into(proto, tensor)
        else:
            proto.data_type, proto.raw_data = int(tensor.dtype), tensor.tobytes()
            proto.dims.extend(tensor.shape.numpy())
        proto.name = str(value.name)

    def _node(self, node: ir.Node) -> None:
        proto = self._proto.node.add(op_type=node.op_type, domain=node.domain, name=node.name)
        proto.overload = node.overload
        proto.input.extend(["" if value is None else str(value.name) for value in node.inputs])
        names = [value.name or "" for value in node.outputs]
        while names and not names[-1]:
            names.pop()
        proto.output.extend(names)
        for attribute in node.attributes.data.values():
            ir.serde.serialize_attribute_into(proto.attribute.add(), attribute)

    def _values(self, infos: Any, values: Iterable[ir.Value]) -> None:
        for value in values:
            infos.add(name=value.name, type=self._type(value))

    def _type(self, value: ir.Value) -> onnx.TypeProto | None:
        if value.type is None:
            return None
        sizes = None if value.shape is None else tuple(map(_size, value.shape))
        key = (kind(value), sizes)
        if key not in self._types:
            self._types[key] = ir.serde.serialize_value(value).type
        return self._types[key]


def _size(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value
