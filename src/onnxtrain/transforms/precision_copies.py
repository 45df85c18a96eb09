"""Copies of weights in the type that a training model computes in, kept beside the weights."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxtrain.transforms.masters import NARROW
from onnxtrain.types import ONNX

COPY_SUFFIX = "_compute.copy"
"""What the name of an input ends with that holds a parameter in a narrower type."""


def read_copies(model: ir.Model, parameters: Collection[str]) -> list[str]:
    """Let a training model read copies of its parameters where it would cast them, in place.

    Casting takes a pass over every weight in every step; copies are written with the update.

    Args:
        model: A training model; its parameters stay inputs of it.
        parameters: Names of its parameters.

    Returns:
        The parameters of which there must be copies.
    """
    graph = model.graph
    copied: dict[str, ir.Node] = {}
    for node in list(graph):
        if node.domain != ONNX or node.op_type != "Cast":
            continue
        given, result = node.inputs[0], node.outputs[0]
        if given is None or given.name not in parameters or not given.is_graph_input():
            continue
        if result.dtype not in NARROW or result.is_graph_output() or given.name in copied:
            continue
        name = str(given.name)
        copy = ir.Value(name=f"{name}{COPY_SUFFIX}", type=result.type, shape=result.shape)
        graph.inputs.append(copy)
        result.replace_all_uses_with(copy)
        copied[name] = node
    graph.remove(copied.values(), safe=True)
    return list(copied)
