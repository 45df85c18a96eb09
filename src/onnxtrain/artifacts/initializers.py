"""Models with the tensors that are asked for as initializers of their graph."""

from __future__ import annotations

from collections.abc import Collection

import onnx
import onnx_ir as ir

from onnxtrain.graph.bodies import constant_tensor
from onnxtrain.graph.lift import lift
from onnxtrain.graph.maps import written
from onnxtrain.graph.tidy import tidy


def with_initializers(
    proto: onnx.ModelProto, model: ir.Model, names: Collection[str]
) -> onnx.ModelProto:
    """The model with named tensors as initializers, and its nodes in an order in which they run.

    Some converters write weights as Constant nodes, sparse, or in bodies and functions.

    Args:
        proto: The model.
        model: The same to work with; it is changed.
        names: Tensors that are trained, or frozen as parameters.
    """
    stored = {tensor.name for tensor in proto.graph.initializer}
    lift(model, lambda one: one.name in names and one.name not in stored)
    if any(constant_tensor(node) is not None and _makes(node, names) for node in model.graph):
        tidy(model)
    moved = any(name in model.graph.initializers and name not in stored for name in names)
    made = [[value.name or "" for value in node.outputs] for node in model.graph]
    if moved or made != [list(node.output) for node in proto.graph.node]:
        return written(model)
    return proto


def _makes(node: ir.Node, names: Collection[str]) -> bool:
    return any(value.name in names for value in node.outputs)
