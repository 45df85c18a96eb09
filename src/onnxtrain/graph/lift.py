"""Constants of bodies made initializers of the model, so that they have gradients of their own.

What stands in a function reaches it as a further argument of every call; all calls share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph.bodies import BodyTensor, body_tensors
from onnxtrain.graph.edit import unique_name

_Parameters = dict[ir.OperatorIdentifier, dict[ir.Value, ir.Value]]
"""By function: the initializers that it reads, each with the parameter that brings it."""


def lift(model: ir.Model, wanted: Callable[[BodyTensor], bool]) -> None:
    """Make constants of bodies initializers of the model, which the bodies read, in place."""
    chosen = [one for one in body_tensors(model) if wanted(one)]
    lifted = [_initializer(model.graph, one) for one in chosen]
    owners: dict[ir.OperatorIdentifier, list[ir.Value]] = {}
    for one, value in zip(chosen, lifted, strict=True):
        if one.function is not None:
            owners.setdefault(one.function.identifier(), []).append(value)
    parameters = _hand_down(model, owners) if owners else {}
    for one, value in zip(chosen, lifted, strict=True):
        read = value if one.function is None else parameters[one.function.identifier()][value]
        _replace(one, read)


def _initializer(graph: ir.Graph, one: BodyTensor) -> ir.Value:
    value = ir.Value(name=one.name, const_value=one.tensor)
    value.type = ir.TensorType(one.tensor.dtype)
    value.shape = ir.Shape(one.tensor.shape.numpy())
    graph.register_initializer(value)
    return value


def _replace(one: BodyTensor, read: ir.Value) -> None:
    """Let a body read another value in place of its constant; it can only return what it makes."""
    old, producer = one.value, one.value.producer()
    body = old.graph if producer is None else producer.graph
    assert isinstance(body, ir.Graph)
    if old.is_graph_output():
        same = ir.node("Identity", [read], name=f"{old.name}_returned")
        body.append(same)
        result = same.outputs[0]
        result.name, result.type, result.shape = old.name, read.type, read.shape
        body.outputs[:] = [result if value is old else value for value in body.outputs]
    old.replace_all_uses_with(read)
    if producer is not None:
        body.remove(producer, safe=True)
    else:
        del body.initializers[str(old.name)]


def _hand_down(
    model: ir.Model, owners: Mapping[ir.OperatorIdentifier, Sequence[ir.Value]]
) -> _Parameters:
    """Give functions parameters for initializers, and all calls of them the arguments."""
    needs = _needs(model, owners)
    before = {key: len(model.functions[key].inputs) for key in needs}
    parameters: _Parameters = {}
    for key, values in needs.items():
        inputs = model.functions[key].inputs
        parameters[key] = {}
        for value in values:
            name = unique_name(model.functions[key].graph, f"{value.name}_given")
            parameters[key][value] = ir.Value(name=name, type=value.type, shape=value.shape)
            inputs.append(parameters[key][value])
    scopes: list[tuple[Iterable[ir.Node], Mapping[ir.Value, ir.Value]]] = [
        (function.all_nodes(), parameters.get(key, {})) for key, function in model.functions.items()
    ]
    for nodes, scope in [(model.graph.all_nodes(), {}), *scopes]:
        for node in [node for node in nodes if node.op_identifier() in needs]:
            key = node.op_identifier()
            node.resize_inputs(before[key] + len(needs[key]))
            for index, value in enumerate(needs[key]):
                node.replace_input_with(before[key] + index, scope.get(value, value))
    return parameters


def _needs(
    model: ir.Model, owners: Mapping[ir.OperatorIdentifier, Sequence[ir.Value]]
) -> dict[ir.OperatorIdentifier, dict[ir.Value, None]]:
    """What each function reads itself or has to hand on to those that it calls."""
    needs = {key: dict.fromkeys(values) for key, values in owners.items()}
    while True:
        count = sum(map(len, needs.values()))
        for key, function in model.functions.items():
            for node in function.all_nodes():
                if called := needs.get(node.op_identifier()):
                    needs.setdefault(key, {}).update(called)
        if sum(map(len, needs.values())) == count:
            return needs
