"""Protobufs of onnx-ir models with what onnx-ir leaves out, and in the order that they had.

onnx-ir has no place for a model's training information, which a graph remembers aside, and writes
metadata sorted, that of tensors twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from onnxtrain.graph import maps

KEY = "onnxtrain.training_info"
Pair = tuple[Mapping[str, str], Any]


def remember(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Keep what a protobuf has and its onnx-ir model has not."""
    if proto.training_info:
        model.graph.meta[KEY] = [info.SerializeToString() for info in proto.training_info]


def written(model: ir.Model) -> onnx.ModelProto:
    """The protobuf of a model, with the training information of tensors that it still has."""
    proto = maps.written(model)
    for data in model.graph.meta.get(KEY, ()):
        info = onnx.TrainingInfoProto.FromString(data)
        bound = {entry.key for entry in (*info.initialization_binding, *info.update_binding)}
        if bound <= model.graph.initializers.keys():
            proto.training_info.append(info)
    for told, entries in _metadata(model, proto):
        have = [entry.key for entry in entries]
        if have != list(told) and set(have) == told.keys():
            del entries[:]
            for key, value in told.items():
                entries.add(key=key, value=value)
    return proto


def _metadata(model: ir.Model, proto: onnx.ModelProto) -> Iterator[Pair]:
    """Every metadata of a model and where its protobuf has it."""
    yield model.metadata_props, proto.metadata_props
    yield from _of_graph(model.graph, proto.graph)
    for function, body in zip(model.functions.values(), proto.functions, strict=True):
        yield function.metadata_props, body.metadata_props
        yield from _of_nodes(function, body.node)


def _of_graph(graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[Pair]:
    yield graph.metadata_props, proto.metadata_props
    tensors = {str(v.name): v.const_value for v in graph.initializers.values()}
    for tensor in proto.initializer:
        yield getattr(tensors[tensor.name], "metadata_props", {}), tensor.metadata_props
    values = {v.name: v for v in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    values |= {value.name: value for node in graph for value in node.outputs}
    for info in (*proto.input, *proto.output, *proto.value_info):
        if info.name in values:
            yield values[info.name].metadata_props, info.metadata_props
    yield from _of_nodes(graph, proto.node)


def _of_nodes(nodes: Iterable[ir.Node], protos: Iterable[onnx.NodeProto]) -> Iterator[Pair]:
    for node, proto in zip(nodes, protos, strict=True):
        yield node.metadata_props, proto.metadata_props
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                continue
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _of_graph(node.attributes[attribute.name].as_graph(), attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                graphs = node.attributes[attribute.name].as_graphs()
                for graph, body in zip(graphs, attribute.graphs, strict=True):
                    yield from _of_graph(graph, body)
