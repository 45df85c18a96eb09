"""Constants in the bodies of If, Loop and Scan: their names, and how they come out.

A body may hold weights, and two bodies may use one name for different tensors. Here each gets a
name of its own, which depends on the file alone, so that a weight that was taken out of its body
for training can be found again in the file when it is written back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import onnx
import onnx_ir as ir

from onnxtrain.types import FLOATS, ONNX


@dataclasses.dataclass(frozen=True)
class BodyTensor:
    """A floating point constant of a body.

    Attributes:
        name: Its name in the whole model.
        place: Which body it stands in, as ``subgraphs`` calls it.
        value: The initializer, or the output of the Constant node.
        tensor: What it holds.
    """

    name: str
    place: str
    value: ir.Value
    tensor: ir.TensorProtocol


def subgraphs(graph: ir.Graph, outer: str = "") -> Iterator[tuple[str, ir.Graph]]:
    """The bodies of a graph's nodes, each followed by those inside of it.

    A body is called by what its node computes and the name of the attribute.
    """
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                made = next((value.name for value in node.outputs if value.name), "")
                place = f"{outer}/{made}:{attribute.name}"
                yield place, attribute.as_graph()
                yield from subgraphs(attribute.as_graph(), place)


def proto_subgraphs(
    graph: onnx.GraphProto, outer: str = ""
) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The same bodies of a graph in protobuf, under the same names."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                place = f"{outer}/{next(filter(None, node.output), '')}:{attribute.name}"
                yield place, attribute.g
                yield from proto_subgraphs(attribute.g, place)


def body_tensors(model: ir.Model) -> list[BodyTensor]:
    """Every floating point constant in a body, under a name that nothing else has."""
    graph = model.graph
    taken = {value.name for value in graph.inputs} | set(graph.initializers)
    taken |= {value.name for node in graph for value in node.outputs}
    found = []
    for place, body in subgraphs(graph):
        for value, tensor in _constants(body):
            name, count = str(value.name), 1
            while name in taken:
                count += 1
                name = f"{value.name}_{count}"
            taken.add(name)
            found.append(BodyTensor(name, place, value, tensor))
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
    """What a Constant node holds, if it is one of numbers."""
    if node.domain != ONNX or node.op_type != "Constant":
        return None
    if "value" in node.attributes:
        return node.attributes["value"].as_tensor()
    for key in ("value_float", "value_floats"):
        if key in node.attributes:
            return ir.tensor(node.attributes[key].value, ir.DataType.FLOAT)
    return None


def lift(model: ir.Model, wanted: Callable[[BodyTensor], bool]) -> None:
    """Make constants of bodies initializers of the model, which the bodies read, in place.

    One that a body returns as it is stays where it is.
    """
    for one in body_tensors(model):
        if one.value.is_graph_output() or not wanted(one):
            continue
        lifted = ir.Value(name=one.name, const_value=one.tensor)
        lifted.type = ir.TensorType(one.tensor.dtype)
        lifted.shape = ir.Shape(one.tensor.shape.numpy())
        producer, body = one.value.producer(), one.value.graph
        one.value.replace_all_uses_with(lifted)
        if producer is not None:
            assert producer.graph is not None
            producer.graph.remove(producer, safe=True)
        else:
            assert body is not None
            del body.initializers[str(one.value.name)]
        model.graph.register_initializer(lifted)
