"""What every model goes through before it is planned or differentiated."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as passes

from onnxtrain.graph.infer import infer
from onnxtrain.graph.verify import verify


def prepare(model: ir.Model) -> ir.Model:
    """Inline functions, turn Constant nodes into initializers, infer types and shapes, in place.

    Raises:
        GraphError: if the graph breaks a rule; the message names the node or value.
    """
    verify(model)
    if model.functions:
        passes.InlinePass()(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    _name_nodes(model.graph)
    return infer(model)


def _name_nodes(graph: ir.Graph) -> None:
    """Give every node a name, since errors, profiles and gradients speak of nodes by name."""
    taken = {node.name for node in graph.all_nodes() if node.name}
    for node in graph.all_nodes():
        if not node.name:
            base = next((v.name for v in node.outputs if v.name), None) or node.op_type
            name, count = f"{node.op_type}_{base}", 1
            while name in taken:
                count += 1
                name = f"{node.op_type}_{base}_{count}"
            node.name = name
            taken.add(name)
