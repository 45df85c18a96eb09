"""Values that a torch module detaches: what is computed from them passes no gradient back.

ONNX has no such operator. Torch's exporter writes an Identity, and its optimizer removes it, but
the node behind it still tells that it was given the result of ``detach``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.traced import (
    DETACH,
    call_of,
    moves,
    parameters,
    read_by_call,
    sources,
    stem,
    tell_detached,
    tensors,
)
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import FLOATS


def restore_detached(graph: ir.Graph) -> None:
    """Put the Identity back in front of every node that was given something detached, in place."""
    called = {name: call for call, _, name in tensors(graph)}
    for node, lost in _given_lost(graph):
        for index in _places(node, lost, called):
            _detach(graph, node, index)


def unclear_calls(graph: ir.Graph) -> list[str]:
    """Calls that were given something detached, but no node of theirs tells what of its inputs.

    Calls that are one with others, which computed the same, may be such.
    """
    called = {name: call for call, _, name in tensors(graph)}
    found: dict[str, bool] = {}
    for node, lost in _given_lost(graph):
        call = str(call_of(node))
        found[call] = found.get(call, False) or bool(_places(node, lost, called))
    return [*(call for call, clear in found.items() if not clear), *_merged(graph)]


def _merged(graph: ir.Graph) -> list[str]:
    """Calls of what is learned that are one with others, in a module that detaches something."""
    nodes = [node for node in all_nodes(graph) if call_of(node)]
    if not any(stem(name) == DETACH for node in nodes for name in read_by_call(node)):
        return []
    made = {str(call_of(node)) for node in nodes}
    made.update(str(value.name) for node in all_nodes(graph) for value in node.outputs)
    learned = _learned(graph)
    found: dict[str, None] = {}
    for node in nodes:
        others = [value for value in node.inputs if value in learned and value.producer()]
        reads = {str(call_of(n)) for value in others if (n := value.producer()) is not None}
        given = read_by_call(node)
        alike = {stem(call) for call in reads if not moves(call)}
        gone = [name for name in given if stem(name) in alike and name not in made]
        if reads - {*given, str(call_of(node))}:
            found.update(dict.fromkeys(gone))
    return list(found)


def _learned(graph: ir.Graph) -> set[ir.Value]:
    """What is computed from parameters, and is no place or size."""
    known = set(parameters(graph).values())
    stored = graph.initializers.values()
    found = {v for v in stored if not known.isdisjoint([str(v.name), *sources(v)])}
    for node in graph:
        if not found.isdisjoint(node.inputs):
            found.update(value for value in node.outputs if value.dtype in (None, *FLOATS))
    return found


def _given_lost(graph: ir.Graph) -> list[tuple[ir.Node, set[str]]]:
    """Nodes that were given results of ``detach`` which no node makes any more, with these."""
    nodes = list(all_nodes(graph))
    given = [(n, {one for one in read_by_call(n) if stem(one) == DETACH}) for n in nodes]
    if not any(names for _, names in given):
        return []
    made = {str(value.name) for node in nodes for value in node.outputs}
    return [(node, names - made) for node, names in given if names - made]


def _places(node: ir.Node, lost: set[str], called: Mapping[str, str]) -> list[int]:
    """Which inputs of a node are what it was given by ``detach``.

    A constant that the exporter computed is called after the last call, which may be that one.
    """
    inputs = ((i, value.name) for i, value in enumerate(node.inputs) if value is not None)
    computed = {i: str(name) for i, name in inputs if name in lost}
    rest = lost.difference(computed.values())
    return [*computed, *(_renamed_places(node, rest, called) if rest else ())]


def _renamed_places(node: ir.Node, lost: set[str], called: Mapping[str, str]) -> list[int]:
    """Which inputs are what a node was given by ``detach``, where they are called otherwise."""
    given = read_by_call(node)
    values = [(i, value) for i, value in enumerate(node.inputs) if value is not None]
    names = [called.get(str(value.name), str(value.name)) for _, value in values]
    outside = {i for i, value in values if _is_from_outside(value, node, lost, called)}
    same = len(values) == len(given) == len(outside)
    if same and _in_order(names, given, lost):
        return [i for (i, _), name in zip(values, given, strict=True) if name in lost]
    pairs = zip(values, names, strict=True)
    strange = {i: value for (i, value), name in pairs if name not in given and i in outside}
    return list(strange) if len(set(strange.values())) == len(lost) else []


def _in_order(names: Sequence[str], given: Sequence[str], lost: set[str]) -> bool:
    """Whether a node may read what it was given in the same order: nothing is at another place."""
    kept = {name: i for i, name in enumerate(given) if name not in lost}
    return all(names[kept[name]] == name for name in names if name in kept)


def _is_from_outside(
    value: ir.Value, node: ir.Node, lost: set[str], called: Mapping[str, str]
) -> bool:
    """Whether a value was not made by the same call, and is no constant of it."""
    producer = value.producer()
    if producer is not None:
        return call_of(producer) != call_of(node)
    made_of = sources(value)
    if made_of:
        return not lost.isdisjoint(made_of)
    return value.name in called or value.is_graph_input()


def _detach(graph: ir.Graph, node: ir.Node, index: int) -> None:
    """Let a node read what passes no gradient back."""
    value = node.inputs[index]
    assert value is not None and node.graph is not None
    same = ir.node("Identity", [value], name=f"{node.name}_{DETACH}_{index}")
    tell_detached(same, str(value.name))
    output = same.outputs[0]
    output.name = unique_name(graph, f"{value.name}_{DETACH}")
    output.type, output.shape = value.type, value.shape
    node.graph.insert_before(node, same)
    node.replace_input_with(index, output)
