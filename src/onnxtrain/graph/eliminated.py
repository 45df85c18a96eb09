"""Calls of which an exporter kept one of several, since they computed the same.

Two normalizations of the same data begin with the same numbers; so do two tokens that are put in
front of the same sequence. Torch's exporter first makes one tensor of their weights and then one
node of both. Training would tie them together. What reads the node still tells the call it read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph.constants import copy
from onnxtrain.graph.copied import copied_node
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.traced import (
    call_of,
    held_names,
    parameters,
    read_by_call,
    sources,
    stem,
    tell_sources,
)
from onnxtrain.types import FLOATS

Use = tuple[ir.Node, int]


def restore_calls(model: ir.Model) -> bool:
    """Give what reads such a call one with parameters of its own, in place; whether there were any.

    A parameter that no tensor holds any more has to be there for each: else it was the same layer.
    """
    graph = model.graph
    known = parameters(graph)
    calls: dict[str, list[ir.Node]] = {}
    for node in graph if known else ():
        if name := call_of(node):
            calls.setdefault(name, []).append(node)
    lost = _Lost(graph, list(known.values()))
    found = False
    for name, nodes in calls.items():
        weights = {v: n for node in nodes for v in node.inputs if v and (n := lost.holds(v))}
        result = _result(nodes)
        if not weights or result is None:
            continue
        for places in _of_others(name, result, calls).values():
            if (names := lost.like(weights)) is not None:
                _copy(graph, nodes, result, names, places)
                found = True
    return found


class _Lost:
    """Parameters that no tensor of a graph holds."""

    def __init__(self, graph: ir.Graph, names: Sequence[str]) -> None:
        self._parameters = frozenset(names)
        held = held_names(graph)
        self._names = [name for name in names if name not in held]

    def holds(self, value: ir.Value) -> str | None:
        """The parameter that a tensor holds, in its own form or another one."""
        if not value.is_initializer() or value.is_graph_input() or value.dtype not in FLOATS:
            return None
        names = sources(value) or [str(value.name)]
        return names[0] if len(names) == 1 and names[0] in self._parameters else None

    def like(self, weights: Mapping[ir.Value, str]) -> dict[ir.Value, str] | None:
        """The one parameter beside each of these, taken off the list; None if one has none."""
        found = {value: self._beside(name) for value, name in weights.items()}
        names = [name for name in found.values() if name is not None]
        if len(set(names)) < len(found):
            return None
        self._names = [name for name in self._names if name not in names]
        return {value: name for value, name in found.items() if name is not None}

    def _beside(self, name: str) -> str | None:
        """Of the same name in a module beside its own, or else in the same module."""
        module, _, leaf = name.rpartition(".")
        around = module.rpartition(".")[0]
        cousins = [n for n in self._names if _split(n) == (around, leaf)]
        siblings = [n for n in self._names if n.rpartition(".")[0] == module]
        near = cousins or siblings
        return near[0] if len(near) == 1 else None


def _split(name: str) -> tuple[str, str]:
    """The module around that of a parameter, and its name in its own."""
    module, _, leaf = name.rpartition(".")
    return module.rpartition(".")[0], leaf


def _result(nodes: Sequence[ir.Node]) -> ir.Value | None:
    """The one value of a call that others read."""
    inside = set(nodes)
    made = [v for node in nodes for v in node.outputs]
    read = [v for v in made if v.is_graph_output() or {n for n, _ in v.uses()} - inside]
    return read[0] if len(read) == 1 else None


def _of_others(name: str, result: ir.Value, calls: Mapping[str, object]) -> dict[str, list[Use]]:
    """Where the result of a call is read for that of another one, which no node is made of."""
    places: dict[ir.Node, list[int]] = {}
    for node, index in result.uses():
        places.setdefault(node, []).append(index)
    found: dict[str, list[Use]] = {}
    for node, indices in places.items():
        if call_of(node) == name:
            continue
        alike = [n for n in read_by_call(node) if stem(n) == stem(name)]
        read = [n for n in alike if n == name or n not in calls]
        if len(read) != len(indices):
            continue
        for index, one in zip(sorted(indices), read, strict=True):
            if one != name:
                found.setdefault(one, []).append((node, index))
    return found


def _copy(
    graph: ir.Graph,
    nodes: Sequence[ir.Node],
    result: ir.Value,
    names: Mapping[ir.Value, str],
    places: Sequence[Use],
) -> None:
    """The nodes of a call once more, with tensors of their own, for some that read it."""
    new = {value: _own(graph, value, name) for value, name in names.items()}
    for node in nodes:
        inputs = [None if v is None else new.get(v, v) for v in node.inputs]
        copied = copied_node(graph, node, inputs, node.metadata_props)
        new |= zip(node.outputs, copied.outputs, strict=True)
    for node, index in places:
        node.replace_input_with(index, new[result])


def _own(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    """A tensor with the numbers of another, for another parameter."""
    is_itself = not sources(value)
    own = copy(graph, value, unique_name(graph, name if is_itself else str(value.name)))
    tell_sources(own, [] if is_itself else [name])
    return own
