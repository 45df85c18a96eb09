"""Graphs that a node carries in serialized form: TritonOp with ``onnx_string``."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from onnxtrain.errors import GraphError
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import MS


def define_embedded(model: ir.Model) -> None:
    """Make every TritonOp that carries a graph the call of a function with that graph, in place.

    Raises:
        GraphError: if what a node carries is not a model, or does not fit its inputs and outputs.
    """
    carried = [node for node in all_nodes(model.graph) if _carries(node)]
    for index, node in enumerate(carried):
        function = ir.serde.deserialize_function(_function(node, f"graph_{index}"))
        model.functions[function.identifier()] = function
        node.overload = function.overload
        node.attributes.clear()
        for domain, version in function.opset_imports.items():
            model.opset_imports.setdefault(domain, version)


def _carries(node: ir.Node) -> bool:
    if node.op_type != "TritonOp" or node.domain != MS or "onnx_string" not in node.attributes:
        return False
    named = node.attributes.get("func_name")
    return not (named is not None and named.value)


def _function(node: ir.Node, overload: str) -> onnx.FunctionProto:
    """The carried graph as a function whose call the node is."""
    carried = node.attributes["onnx_string"].value
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(carried.encode() if isinstance(carried, str) else carried)
    except DecodeError:
        raise GraphError(f"the onnx_string of node '{node.name}' is not an ONNX model") from None
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value.name for value in proto.graph.input if value.name not in weights]
    outputs = [value.name for value in proto.graph.output]
    if len(inputs) != len(node.inputs) or None in node.inputs or len(outputs) != len(node.outputs):
        raise GraphError(
            f"the graph in the onnx_string of node '{node.name}' has {len(inputs)} inputs and "
            f"{len(outputs)} outputs, the node {len(node.inputs)} (all must be there) and "
            f"{len(node.outputs)}"
        )
    constants = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in proto.graph.initializer
    ]
    nodes = [*constants, *proto.graph.node]
    return onnx.helper.make_function(
        MS, "TritonOp", inputs, outputs, nodes, proto.opset_import, overload=overload
    )
