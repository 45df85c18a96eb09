"""Constants in the bodies of If, Loop and Scan and of the model's functions, and their names.

A body may hold weights, and two bodies may use one name for different tensors. Here each gets a
name of its own, which depends on the file alone, so that a weight that was taken out of its body
for training can be found again in the file when it is written back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from onnxtrain.graph.edit import fresh_name
from onnxtrain.types import FLOATS, ONNX


@dataclasses.dataclass(frozen=True)
class BodyTensor:
    """A floating point constant of a body.

    Attributes:
        name: Its name in the whole model.
        place: Which body it stands in, as ``bodies`` calls it.
        value: The initializer, or the output of the Constant node.
        tensor: What it holds.
        function: The function that the body belongs to, if it is not the model's graph.
    """

    name: str
    place: str
    value: ir.Value
    tensor: ir.TensorProtocol
    function: ir.Function | None = None


def subgraphs(graph: ir.Graph, outer: str = "") -> Iterator[tuple[str, ir.Graph]]:
    """The bodies of a graph's nodes, each followed by those inside of it.

    A body is called by what its node computes and the name of the attribute.
    """
    for node in graph:
        for attribute in node.attributes.data.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                made = next((value.name for value in node.outputs if value.name), "")
                place = f"{outer}/{made}:{attribute.name}"
                yield place, attribute.as_graph()
                yield from subgraphs(attribute.as_graph(), place)


def proto_subgraphs(
    graph: onnx.GraphProto | onnx.FunctionProto, outer: str = ""
) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The same bodies of a graph in protobuf, under the same names."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH and not attribute.ref_attr_name:
                place = f"{outer}/{next(filter(None, node.output), '')}:{attribute.name}"
                yield place, attribute.g
                yield from proto_subgraphs(attribute.g, place)


def bodies(model: ir.Model) -> Iterator[tuple[str, ir.Graph, ir.Function | None]]:
    """The bodies of a model's nodes, then those of its functions, each with what is inside."""
    for place, body in subgraphs(model.graph):
        yield place, body, None
    for function in model.functions.values():
        outer = f"{function.domain}:{function.name}:{function.overload}"
        yield outer, function.graph, function
        for place, body in subgraphs(function.graph, outer):
            yield place, body, function


def proto_bodies(
    model: onnx.ModelProto,
) -> Iterator[tuple[str, onnx.GraphProto | onnx.FunctionProto]]:
    """The same bodies of a model in protobuf, under the same names."""
    yield from proto_subgraphs(model.graph)
    for function in model.functions:
        outer = f"{function.domain}:{function.name}:{function.overload}"
        yield outer, function
        yield from proto_subgraphs(function, outer)


def body_tensors(model: ir.Model) -> list[BodyTensor]:
    """Every floating point constant in a body, under a name that nothing else has."""
    graph = model.graph
    taken = {value.name for value in graph.inputs if value.name} | set(graph.initializers)
    taken |= {value.name for node in graph for value in node.outputs if value.name}
    found = []
    for place, body, function in bodies(model):
        for value, tensor in _constants(body):
            name = fresh_name(str(value.name), taken)
            found.append(BodyTensor(name, place, value, tensor, function))
    return found


def _constants(graph: ir.Graph) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for value in graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype in FLOATS:
            yield value, value.const_value
    for node in graph:
        tensor = constant_tensor(node)
        if tensor is not None and tensor.dtype in FLOATS:
            yield node.outputs[0], tensor


def constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """What a Constant node holds, if it is one of numbers that no call of a function gives."""
    if node.domain != ONNX or node.op_type != "Constant":
        return None
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    if "value" in node.attributes:
        return node.attributes["value"].as_tensor()
    for key in ("value_float", "value_floats"):
        if key in node.attributes:
            return ir.tensor(node.attributes[key].value, ir.DataType.FLOAT)
    return None
