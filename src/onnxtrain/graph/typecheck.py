"""What a schema demands of a node: how many inputs and outputs, and which types agree."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph import schemas
from onnxtrain.graph.bindings import opset_of, paired
from onnxtrain.types import op_name, type_string


def check_types(model: ir.Model) -> None:
    """Check every node whose operator is known.

    Raises:
        GraphError: naming the first node that contradicts its schema.
    """
    imports = model.graph.opset_imports
    for node in model.graph.all_nodes():
        schema = schemas.get(node.domain, node.op_type, opset_of(node, imports))
        if schema is not None:
            _check_counts(node, schema)
            _check_agreement(node, schema)


def _check_counts(node: ir.Node, schema: onnx.defs.OpSchema) -> None:
    for what, count, least, most in (
        ("inputs", len(node.inputs), schema.min_input, schema.max_input),
        ("outputs", len(node.outputs), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            allowed = str(least) if least == most else f"{least} to {most}"
            raise GraphError(f"{_shown(node)} has {count} {what}, but it takes {allowed}")


def _check_agreement(node: ir.Node, schema: onnx.defs.OpSchema) -> None:
    """Values with the same type name have the same type."""
    seen: dict[str, tuple[str, str]] = {}
    constrained = {c.type_param_str for c in schema.type_constraints}
    pairs = [*paired(schema.inputs, node.inputs), *paired(schema.outputs, node.outputs)]
    for formal, value in pairs:
        if value is None or value.dtype is None:
            continue
        found, name = type_string(value.type), formal.type_str
        wanted, because = seen.get(name, (found, "")) if name in constrained else (name, "")
        if found != wanted:
            raise GraphError(
                f"{_shown(node)}: '{value.name}' for {formal.name} is {found}, but it must be "
                f"{wanted}{because}\n  put a Cast before the node"
            )
        seen.setdefault(name, (found, f" like '{value.name}' for {formal.name}"))


def _shown(node: ir.Node) -> str:
    return f"node '{node.name}' ({op_name(node.domain, node.op_type)})"
