"""Gradients that may be handed over: a step over one batch alone needs no buffers to add them up.

Whether they are is told when the step runs, so that one plan serves both.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.edit import value_names
from onnxtrain.transforms.training_graph import BUFFER_SUFFIX
from onnxtrain.types import MS, OWN, DataType

HAND_OVER_INPUT = "hand_over_grad"
HANDED_SUFFIX = "_grad.handed_over"


def hand_over_gradients(model: ir.Model) -> int:
    """Let every accumulation give its gradient out if the new input says so; gives their number."""
    graph = model.graph
    nodes = [n for n in graph if (n.domain, n.op_type) == (MS, "InPlaceAccumulatorV2")]
    if not nodes or not all(map(_fits, nodes)) or HAND_OVER_INPUT in value_names(graph):
        return 0
    switch = ir.val(HAND_OVER_INPUT, DataType.BOOL, [1])
    graph.inputs.append(switch)
    handed = {node.outputs[0]: _hand_over(graph, node, switch) for node in nodes}
    graph.outputs[:] = [handed.get(value, value) for value in graph.outputs]
    graph.remove(nodes, safe=True)
    graph.opset_imports.setdefault(OWN, 1)
    return len(nodes)


def _fits(node: ir.Node) -> bool:
    """Whether a node does nothing but add a gradient to the buffer of its parameter."""
    buffer, value, *rest = node.inputs
    if buffer is None or value is None or not rest or rest[0] is None:
        return False
    flag, *more = node.outputs
    seen = any(output.uses() or output.is_graph_output() for output in more)
    named = str(buffer.name).endswith(BUFFER_SUFFIX) and buffer.is_graph_input()
    return named and flag.is_graph_output() and not flag.uses() and not seen


def _hand_over(graph: ir.Graph, node: ir.Node, switch: ir.Value) -> ir.Value:
    """Put a HandOver before a node that adds a gradient; gives the gradient that it gives out."""
    buffer, value, reset = node.inputs[:3]
    assert buffer is not None and value is not None
    new = ir.node("HandOver", [buffer, value, reset, switch], domain=OWN, name=node.name)
    new.metadata_props.update(node.metadata_props)
    gradient = new.outputs[0]
    gradient.name = str(buffer.name).removesuffix(BUFFER_SUFFIX) + HANDED_SUFFIX
    gradient.type, gradient.shape = value.type, value.shape
    graph.insert_before(node, new)
    return gradient
