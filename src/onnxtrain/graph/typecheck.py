"""What a schema demands of a node: how many inputs and outputs, and which types agree."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph.bindings import Signature, kinds, opset_of, paired, signature
from onnxtrain.graph.grammar import shown
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import type_string


def check_types(model: ir.Model) -> None:
    """Check every node whose operator is known.

    Raises:
        GraphError: naming the first node that contradicts its schema.
    """
    imports = model.graph.opset_imports
    right: set[Hashable] = set()  # most nodes of a model are like others
    for node in all_nodes(model.graph):
        version = opset_of(node, imports)
        key = (node.domain, node.op_type, version, kinds(node))
        if key in right:
            continue
        known = signature(node, version)
        if known is not None:
            _check_counts(node, known)
            _check_agreement(node, known)
        right.add(key)


def _check_counts(node: ir.Node, known: Signature) -> None:
    for what, count, (least, most) in (
        ("inputs", len(node.inputs), known.input_counts),
        ("outputs", len(node.outputs), known.output_counts),
    ):
        if not least <= count <= most:
            allowed = str(least) if least == most else f"{least} to {most}"
            raise GraphError(f"{shown(node)} has {count} {what}, but it takes {allowed}")


def _check_agreement(node: ir.Node, known: Signature) -> None:
    """Values with the same type name have the same type."""
    seen: dict[str, tuple[str, str]] = {}
    pairs = [*paired(known.inputs, node.inputs), *paired(known.outputs, node.outputs)]
    for formal, value in pairs:
        if value is None or value.dtype is None:
            continue
        found, name = type_string(value.type), formal.type_str
        wanted, because = seen.get(name, (found, "")) if name in known.variables else (name, "")
        if found != wanted:
            because = f" like {because}" if because else ""
            raise GraphError(
                f"{shown(node)}: '{value.name}' for {formal.name} is {found}, but it must be "
                f"{wanted}{because}\n  put a Cast before the node"
            )
        if name not in seen:
            seen[name] = (found, f"'{value.name}' for {formal.name}")
