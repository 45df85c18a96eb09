"""The grammar of a graph: what must hold before anybody works on it."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.graph.walk import all_nodes


def verify(model: ir.Model) -> None:
    """Check that values are defined once and before use, and that opsets are imported.

    Raises:
        GraphError: at the first rule that does not hold.
    """
    imports = model.graph.opset_imports
    functions = {(f.domain, f.name) for f in model.functions.values()}
    for node in all_nodes(model.graph):
        known = node.domain in imports or (node.domain, node.op_type) in functions
        if not known and not (node.domain == "" and "ai.onnx" in imports):
            raise GraphError(
                f"node '{node.name}' ({node.op_type}) uses domain '{node.domain or 'ai.onnx'}', "
                "which the model does not import\n"
                "  add the domain to the opset imports, and a kernel for the operator"
            )
    _scope(model.graph, set())


def _scope(graph: ir.Graph, outer: set[ir.Value]) -> None:
    defined = outer | set(graph.inputs) | set(graph.initializers.values())
    names = {value.name for value in defined - outer}
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in defined:
                raise GraphError(
                    f"node '{node.name}' ({node.op_type}) reads '{value.name}', which no earlier "
                    "node, input or initializer defines"
                )
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                _scope(attribute.as_graph(), set(defined))
        for value in node.outputs:
            if value.name and value.name in names:
                raise GraphError(f"two definitions of '{value.name}', the second by '{node.name}'")
            names.add(value.name)
            defined.add(value)
    for value in graph.outputs:
        if value not in defined:
            raise GraphError(f"output '{value.name}' of graph '{graph.name}' is never defined")
