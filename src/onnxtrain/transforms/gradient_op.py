"""ONNX's own Gradient operator, replaced by the nodes that compute it."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.gradients.bodies import expand_without_rule
from onnxtrain.gradients.engine import backward
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.prepare import prepare
from onnxtrain.types import TRAINING

OP = "Gradient"


def has_gradients(model: ir.Model) -> bool:
    """Whether a model has a Gradient node."""
    return any(_is_gradient(node) for node in model.graph)


def expand_gradients(model: ir.Model) -> ir.Model:
    """Replace each Gradient node of a model, in place; a later one may differentiate an earlier.

    Raises:
        GraphError: if a node names a tensor that there is not, or feeds another one than it names.
        NoGradientError: if an operator in the way has no gradient rule.
    """
    while has_gradients(model):
        prepare(model)
        first = _first(model)
        y = str(first.attributes.get_string("y"))
        expand_without_rule(model, first.attributes.get_strings("xs"), [y])
        _expand(_first(model), model.graph)
        model.graph.sort()
    return model


def _first(model: ir.Model) -> ir.Node:
    return next(node for node in model.graph if _is_gradient(node))


def _is_gradient(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == (TRAINING, OP)


def _expand(node: ir.Node, graph: ir.Graph) -> None:
    known = _values(graph)
    names = [*node.attributes.get_strings("xs"), *node.attributes.get_strings("zs", ())]
    missing = [name for name in (*names, node.attributes.get_string("y")) if name not in known]
    if missing:
        raise GraphError(f"node '{node.name}' (Gradient) names {missing}, which the graph has not")
    for name, value in zip(names, node.inputs, strict=True):
        if known[name] is not value:
            raise GraphError(
                f"node '{node.name}' (Gradient) feeds another tensor for '{name}'\n"
                "  it can only differentiate the graph at the values that it computes"
            )
    xs = [known[name] for name in node.attributes.get_strings("xs")]
    y = known[str(node.attributes.get_string("y"))]
    grads = backward(graph, xs, {y: _filled(graph, 1.0, y)})
    for x, output in zip(xs, node.outputs, strict=False):
        grad = grads[x] if x in grads else _filled(graph, 0.0, x)
        same = ir.node("Identity", [grad], name=f"{node.name}_{output.name}")
        graph.append(same)
        ir.convenience.replace_all_uses_with(output, same.outputs[0], replace_graph_outputs=True)
        same.outputs[0].name, output.name = output.name, f"{output.name}_unused"
    graph.remove(node, safe=True)


def _filled(graph: ir.Graph, number: float, like: ir.Value) -> ir.Value:
    """A tensor of one number in the shape and type of another."""
    op = Ops(graph, f"{like.name}_filled/")
    filled = op.filled(number, like, like)
    graph.extend(op.nodes)
    return filled


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    """Values of a graph by their names."""
    values = [*graph.inputs, *graph.initializers.values()]
    values += [value for node in graph for value in node.outputs]
    return {str(value.name): value for value in values if value.name}
