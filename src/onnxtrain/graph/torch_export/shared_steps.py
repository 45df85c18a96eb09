"""Layers of which an exporter computes the first steps once, since they begin equal.

A layer that torch's exporter writes as several nodes has some of them in common with a copy of it
that reads the same data: torch's exporter made one tensor of both weights, and then one node of
both. The nodes that each layer has of its own tell the parameters that it was traced with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph.torch_export.copied import copied_node
from onnxtrain.graph.torch_export.lost import Lost, own_tensor
from onnxtrain.graph.torch_export.traced import call_of, given, parameters, read_by_call, stem


def restore_steps(model: ir.Model) -> bool:
    """Give such layers steps and parameters of their own, in place; whether there were any."""
    graph = model.graph
    known = parameters(graph)
    lost = Lost(graph)
    made: dict[str, _Layer] = {}
    for node in list(graph) if lost.names else ():
        for index, value in enumerate(node.inputs):
            first = _step_of_another(node, value)
            if first is None or value is None:
                continue
            call = str(call_of(node))
            if call not in made:
                names = _names(given(first, known), given(node, known), lost)
                made[call] = _Layer(graph, names, lost, node.metadata_props)
            if (own := made[call].own(value, str(call_of(first)))) is not None:
                node.replace_input_with(index, own)
    return any(layer.new for layer in made.values())


def _step_of_another(node: ir.Node, value: ir.Value | None) -> ir.Node | None:
    """The node that makes what a call reads as a step of its own, and that is of another call."""
    first = None if value is None else value.producer()
    call = None if first is None else call_of(first)
    own = call_of(node)
    if first is None or call is None or own is None or call == own or stem(call) != stem(own):
        return None
    alike = len(read_by_call(first)) == len(read_by_call(node))
    return first if alike and call not in read_by_call(node) else None


def _names(first: Sequence[str], own: Sequence[str], lost: Lost) -> dict[str, str]:
    """The lost parameters of a layer by those that are in their place in another one."""
    if len(first) != len(own):
        return {}
    return {a: b for a, b in zip(first, own, strict=True) if a != b and b in lost.names}


def _steps(value: ir.Value, call: str) -> list[ir.Node]:
    """The nodes of a call that make a value, in order."""
    node = value.producer()
    if node is None or call_of(node) != call:
        return []
    before = [step for one in node.inputs if one is not None for step in _steps(one, call)]
    return list(dict.fromkeys([*before, node]))


class _Layer:
    """A layer that gets steps of its own.

    Args:
        graph: The graph.
        names: Its parameters by those of the layer that it begins like.
        lost: Parameters that are nowhere.
        told: What the nodes of the layer tell.

    Attributes:
        new: Its tensors and results by those of the other layer.
    """

    def __init__(
        self, graph: ir.Graph, names: Mapping[str, str], lost: Lost, told: Mapping[str, str]
    ) -> None:
        self._graph, self._names, self._lost, self._told = graph, names, lost, told
        self.new: dict[ir.Value, ir.Value] = {}

    def own(self, value: ir.Value, call: str) -> ir.Value | None:
        """What stands for a value of another call; None if that reads no parameter of its own."""
        steps = _steps(value, call)
        for one in [v for node in steps for v in node.inputs]:
            held = self._lost.held_by(one)
            if one is None or held is None or one in self.new:
                continue
            if held in self._names:
                self.new[one] = own_tensor(self._graph, one, held, self._names[held])
                self._lost.take([self._names[held]])
        for node in steps:
            reads = any(v in self.new for v in node.inputs if v is not None)
            if reads and node.outputs[0] not in self.new:
                inputs = [None if v is None else self.new.get(v, v) for v in node.inputs]
                copied = copied_node(self._graph, node, inputs, self._told)
                self.new |= zip(node.outputs, copied.outputs, strict=True)
        return self.new.get(value)
