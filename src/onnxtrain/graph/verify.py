"""The grammar of a graph: what must hold before anybody works on it."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph.walk import all_nodes

_LAST = 2**31 - 1
"""The largest version that ONNX can hold."""


def verify(model: ir.Model) -> None:
    """Check that values are defined once and before use, and that opsets are imported.

    Raises:
        GraphError: at the first rule that does not hold.
    """
    imports = model.graph.opset_imports
    for domain, version in imports.items():
        if not (domain in ("", "ai.onnx")) <= version <= _LAST:
            raise GraphError(
                f"the model imports opset {version} of '{domain or 'ai.onnx'}'\n"
                "  versions are numbers from 1 on: write the one that it was exported with"
            )
    functions = {(f.domain, f.name) for f in model.functions.values()}
    for node in all_nodes(model.graph):
        if node.domain in imports or (node.domain, node.op_type) in functions:
            continue
        if not (node.domain == "" and "ai.onnx" in imports):
            raise GraphError(
                f"node '{node.name}' ({node.op_type}) uses domain '{node.domain or 'ai.onnx'}', "
                "which the model does not import\n"
                "  add the domain to the opset imports, and a kernel for the operator"
            )
    _scope(model.graph, set())


def _scope(graph: ir.Graph, defined: set[ir.Value]) -> None:
    """Check a graph; ``defined`` has what is known outside of it, now and afterwards."""
    own = {*graph.inputs, *graph.initializers.data.values()} - defined
    names = {value.name for value in own}
    defined |= own
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in defined:
                raise GraphError(
                    f"node '{node.name}' ({node.op_type}) reads '{value.name}', which no earlier "
                    "node, input or initializer defines"
                )
        for attribute in node.attributes.data.values():
            if attribute.type == ir.AttributeType.GRAPH:
                _scope(attribute.as_graph(), defined)
        for value in node.outputs:
            name = value.name
            if name and name in names:
                raise GraphError(f"two definitions of '{name}', the second by '{node.name}'")
            names.add(name)
        own.update(node.outputs)
        defined.update(node.outputs)
    for value in graph.outputs:
        if value not in defined:
            raise GraphError(f"output '{value.name}' of graph '{graph.name}' is never defined")
    defined -= own
