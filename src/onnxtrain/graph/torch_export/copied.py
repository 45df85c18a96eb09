"""Weights of copied layers, which an exporter made one tensor because their numbers were equal.

Layers that are copies of one (those of ``nn.TransformerEncoder``) have the same numbers until they
are trained. Torch's exporter stores them once. Its nodes still tell the parameters that they were
traced with; those that are tied on purpose are one parameter there, too.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxtrain.graph.constants import copy
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.traced import (
    given,
    held_names,
    is_normalized,
    parameters,
    read_by_call,
    sources,
    tell_sources,
)
from onnxtrain.types import FLOATS, ONNX

MOVERS = frozenset(
    {"Expand", "Gather", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that exporters merge, too, once they read the same tensor."""

_ELEMENTWISE = frozenset({"Add", "Div", "Mul", "Sub"})
"""Operators of two operands of one call."""


def part_copies(graph: ir.Graph) -> None:
    """Give every parameter that nodes were traced with a tensor of its own, in place."""
    targets = parameters(graph)
    if not targets:
        return
    _part_inputs(graph, targets)
    stored = held_names(graph)
    for value in list(graph.initializers.values()):
        name = _parameter(value, set(targets.values()))
        if name is None or value.is_graph_input():
            continue
        readers: dict[str, set[ir.Node]] = {}
        _find(value, name, targets, stored, readers)
        _find_layers(graph, value, name, targets, stored, readers)
        for other, nodes in readers.items():
            own = copy(graph, value, unique_name(graph, _own_name(value, name, other)))
            tell_sources(own, [other if one == name else one for one in sources(value)])
            _hand_over(graph, value, own, nodes)


def _part_inputs(graph: ir.Graph, targets: Mapping[str, str]) -> None:
    """Give a node that reads one tensor several times those parameters that it was traced with.

    Both of a normalization that begins as zeros are equal.
    """
    stored = held_names(graph)
    for node in graph:
        uses: dict[ir.Value, list[int]] = {}
        for index, value in enumerate(node.inputs):
            if value is not None and value.is_initializer() and not value.is_graph_input():
                uses.setdefault(value, []).append(index)
        taken = given(node, targets)
        for value, places in uses.items():
            if not 1 < len(places) == len(taken) or is_normalized(node):
                continue
            for index, name in zip(places, taken, strict=True):
                if name not in stored:
                    node.replace_input_with(index, copy(graph, value, unique_name(graph, name)))


def _parameter(value: ir.Value, parameters: set[str]) -> str | None:
    """The parameter that a tensor is, or that alone it was computed from."""
    tensor = value.const_value
    if tensor is None or tensor.dtype not in FLOATS or not value.uses():
        return None
    if value.name in parameters:
        return str(value.name)
    made_of = [name for name in sources(value) if name in parameters]
    return made_of[0] if len(made_of) == 1 else None


def _own_name(value: ir.Value, name: str, other: str) -> str:
    """What a copy of a tensor for another parameter is called."""
    return other if value.name == name else f"{other.rpartition('.')[0]}.{value.name}"


def _find(
    value: ir.Value,
    name: str,
    targets: Mapping[str, str],
    stored: set[str],
    readers: dict[str, set[ir.Node]],
) -> None:
    """Collect the nodes that were traced with another parameter, which is stored nowhere."""
    leaf = _leaf(name)
    for node, index in value.uses():
        if is_normalized(node):
            continue
        taken = given(node, targets)
        alike = taken if _takes_one(node) else [t for t in taken if _leaf(t) == leaf]
        others = {one for one in alike if one not in stored}
        if name not in taken and len(others) == 1:
            readers.setdefault(others.pop(), set()).add(node)
        elif _moves(node, index):
            for output in node.outputs:
                _find(output, name, targets, stored, readers)


def _find_layers(
    graph: ir.Graph,
    value: ir.Value,
    name: str,
    targets: Mapping[str, str],
    stored: set[str],
    readers: dict[str, set[ir.Node]],
) -> None:
    """Collect layers that a normalization was folded into, with the parameters that they had.

    They tell those of the normalization. A layer is declared before it: its parameter is the last
    one before these that is this one, or stored nowhere and told by no node.
    """
    layers = [node for node, _ in value.uses() if is_normalized(node)]
    if len(layers) < 2:
        return
    told = {one for node in graph for one in given(node, targets)} | stored - {name}
    order = list(targets.values())
    found: dict[str, set[ir.Node]] = {}
    for node in layers:
        places = [order.index(one) for one in given(node, targets)]
        before = order[: min(places, default=0)]
        own = [one for one in before if _leaf(one) == _leaf(name) and one not in told]
        found.setdefault(own[-1] if own else name, set()).add(node)
    if found.pop(name, None):
        readers.update(found)


def _leaf(name: str) -> str:
    """What a parameter is called in its module."""
    return name.rpartition(".")[2]


def _takes_one(node: ir.Node) -> bool:
    """Whether a parameter that a node was traced with can only be the one that it reads."""
    return node.op_type in _ELEMENTWISE and len(read_by_call(node)) == len(node.inputs)


def is_mover(node: ir.Node, index: int) -> bool:
    """Whether a node takes parts of what it reads there, or gives it another shape."""
    return index == 0 and node.domain == ONNX and node.op_type in MOVERS


def _moves(node: ir.Node, index: int) -> bool:
    """Whether it takes the same parts of a parameter for all inputs, not the rows of words."""
    places = node.inputs[1] if node.op_type == "Gather" else None
    return is_mover(node, index) and (places is None or places.const_value is not None)


def _hand_over(graph: ir.Graph, old: ir.Value, new: ir.Value, nodes: set[ir.Node]) -> None:
    """Let nodes read another value instead of one, also behind nodes that move it."""
    for node, index in list(old.uses()):
        if node in nodes:
            node.replace_input_with(index, new)
        elif _moves(node, index) and any(_leads(value, nodes) for value in node.outputs):
            inputs = [new if i == index else value for i, value in enumerate(node.inputs)]
            moved = copied_node(graph, node, inputs, node.metadata_props)
            for before, after in zip(node.outputs, moved.outputs, strict=True):
                _hand_over(graph, before, after, nodes)


def _leads(value: ir.Value, nodes: set[ir.Node]) -> bool:
    """Whether nodes read a value, itself or moved."""
    return any(
        node in nodes or (_moves(node, index) and any(_leads(v, nodes) for v in node.outputs))
        for node, index in value.uses()
    )


def copied_node(
    graph: ir.Graph,
    node: ir.Node,
    inputs: list[ir.Value | None],
    told: Mapping[str, str],
) -> ir.Node:
    """A copy of a node behind it that reads other values."""
    copied = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        list(node.attributes.values()),
        num_outputs=len(node.outputs),
        doc_string=node.doc_string,
        metadata_props=dict(told),
    )
    for old, new in zip(node.outputs, copied.outputs, strict=True):
        new.name, new.type, new.shape = unique_name(graph, str(old.name)), old.type, old.shape
    graph.insert_after(node, copied)
    return copied
