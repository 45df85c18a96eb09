"""Relus behind maximum pools instead of in front of them: they have as much less to do.

The maximum of what Relu gives is what Relu gives of the maximum. Where that is positive it is found
in the same place, and where it is not both have no gradient: not a bit is another one.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from onnxtrain.graph.edit import detach, fresh_name, sole_reader, take_over, value_names
from onnxtrain.graph.lean import is_measure
from onnxtrain.transforms.backward.pools import is_plain_pool
from onnxtrain.types import MS, ONNX


class _Found(NamedTuple):
    relu: ir.Node
    pool: ir.Node
    pool_grad: ir.Node
    relu_grad: ir.Node
    measures: list[ir.Node]


def pool_first(model: ir.Model) -> int:
    """Exchange Relus and pools that alone read them, and their gradients; gives their number."""
    graph = model.graph
    found = [one for node in graph if (one := _match(node)) is not None]
    names = value_names(graph)
    for one in found:
        _exchange(graph, one, names)
    return len(found)


def _match(pool: ir.Node) -> _Found | None:
    if not is_plain_pool(pool) or len(pool.outputs) < 2:
        return None
    relu, places = pool.inputs[0].producer() if pool.inputs[0] else None, pool.outputs[1]
    if relu is None or (relu.domain, relu.op_type) != (ONNX, "Relu"):
        return None
    pool_grad, passed = sole_reader(places), relu.outputs[0]
    if pool_grad is None or pool_grad.op_type != "MaxPoolGrad" or passed.is_graph_output():
        return None
    relu_grad = sole_reader(pool_grad.outputs[0])
    if relu_grad is None or (relu_grad.domain, relu_grad.op_type) != (MS, "ReluGrad"):
        return None
    others = [use.node for use in passed.uses() if use.node not in (pool, relu_grad)]
    right = relu_grad.inputs[0] is pool_grad.outputs[0] and relu_grad.inputs[1] is passed
    same_graph = all(node.graph is pool.graph for node in (relu, pool_grad, relu_grad))
    if not (right and same_graph and all(map(is_measure, others))):
        return None
    return _Found(relu, pool, pool_grad, relu_grad, others)


def _exchange(graph: ir.Graph, found: _Found, names: set[str]) -> None:
    relu, pool, pool_grad, relu_grad, measures = found
    x, y, dy, dx = relu.inputs[0], pool.outputs[0], pool_grad.inputs[0], relu_grad.outputs[0]
    assert x is not None and dy is not None, "both are wanted"
    for node in measures:
        node.replace_input_with(0, x)
    pool.replace_input_with(0, x)
    largest = ir.Node(ONNX, "Relu", [y], version=relu.version, name=relu.name)
    y.replace_all_uses_with(largest.outputs[0], replace_graph_outputs=True)
    largest.replace_input_with(0, y)
    result = largest.outputs[0]
    result.name, result.type, result.shape = y.name, y.type, y.shape
    y.name = fresh_name(f"{relu.outputs[0].name}_pooled", names)
    graph.insert_after(pool, largest)

    passed = ir.Node(MS, "ReluGrad", [dy, result], name=relu_grad.name)
    given = passed.outputs[0]
    given.name, given.type, given.shape = fresh_name(f"{y.name}_grad", names), dy.type, y.shape
    graph.insert_before(pool_grad, passed)
    pool_grad.replace_input_with(0, given)
    take_over(dx, pool_grad.outputs[0])
    graph.remove(list(detach(relu, relu_grad)), safe=True)
