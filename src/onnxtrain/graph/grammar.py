"""What a schema demands of a node before types are known: attributes, and inputs that must be."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph import schemas
from onnxtrain.graph.bindings import opset_of
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX, op_name

SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single
BODIES = {
    "If": {"then_branch": 0, "else_branch": 0},
    "Loop": {"body": 1},
    "Scan": {"body": 0},
}
"""How many outputs bodies have, at least, beyond those of their node."""
NUMBERS = {
    ir.AttributeType.INT: ir.AttributeType.FLOAT,
    ir.AttributeType.INTS: ir.AttributeType.FLOATS,
}
"""Whole numbers serve where others are wanted."""


@dataclasses.dataclass(frozen=True)
class Demands:
    """What a schema demands: types of attributes by name, which must be there, inputs too."""

    types: Mapping[str, ir.AttributeType]
    required: tuple[str, ...]
    inputs: Mapping[int, str]


@functools.cache
def _demands(op: str, version: int) -> Demands | None:
    schema: Any = schemas.get(ONNX, op, version)
    if schema is None:
        return None
    return Demands(
        {name: ir.AttributeType[a.type.name] for name, a in schema.attributes.items()},
        tuple(name for name, a in schema.attributes.items() if a.required),
        {i: formal.name for i, formal in enumerate(schema.inputs) if formal.option == SINGLE},
    )


def check_nodes(model: ir.Model) -> None:
    """Check the nodes of ONNX's own operators.

    Raises:
        GraphError: naming the first node that lacks something, or has it in the wrong form.
    """
    for node in all_nodes(model.graph):
        if node.domain != ONNX:
            continue
        known = _demands(node.op_type, opset_of(node, model.graph.opset_imports))
        if known is not None:
            _check_attributes(node, known)
            _check_inputs(node, known)
            _check_bodies(node)


def _check_attributes(node: ir.Node, known: Demands) -> None:
    for name in known.required:
        if name not in node.attributes:
            raise GraphError(f"{shown(node)} lacks its attribute '{name}'")
    for name, attribute in node.attributes.items():
        wanted = known.types.get(name, attribute.type)
        empty = isinstance(attribute.value, (list, tuple)) and not attribute.value
        if wanted not in (attribute.type, NUMBERS.get(attribute.type)) and not empty:
            raise GraphError(
                f"{shown(node)}: attribute '{name}' is {attribute.type.name}, "
                f"but it must be {wanted.name}"
            )


def _check_inputs(node: ir.Node, known: Demands) -> None:
    for index, name in known.inputs.items():
        if index >= len(node.inputs) or node.inputs[index] is None:
            raise GraphError(f"{shown(node)} lacks its input {index}, '{name}'")


def _check_bodies(node: ir.Node) -> None:
    bodies = BODIES.get(node.op_type, {})
    counts = {name: len(node.attributes[name].as_graph().outputs) for name in bodies}
    for name, more in bodies.items():
        wanted = max(len(node.outputs) + more, *counts.values())
        if counts[name] < wanted:
            raise GraphError(
                f"{shown(node)}: '{name}' must have {wanted} outputs, it has {counts[name]}"
            )


def shown(node: ir.Node) -> str:
    """A node as errors call it."""
    return f"node '{node.name}' ({op_name(node.domain, node.op_type)})"
