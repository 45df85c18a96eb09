"""Values that a torch module detaches: what is computed from them passes no gradient back.

ONNX has no such operator. Torch's exporter writes an Identity, and its optimizer removes it, but
the node behind it still tells that it was given the result of ``detach``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.traced import (
    DETACH,
    call_of,
    read_by_call,
    sources,
    stem,
    tell_detached,
    tensors,
)
from onnxtrain.graph.walk import all_nodes


def restore_detached(graph: ir.Graph) -> None:
    """Put the Identity back in front of every node that was given something detached, in place."""
    called = {name: call for call, _, name in tensors(graph)}
    for node in list(all_nodes(graph)):
        lost = _lost(node)
        for index in _places(node, lost, called) if lost else ():
            _detach(graph, node, index)


def _lost(node: ir.Node) -> set[str]:
    """What a node was given by ``detach`` that it does not read under that name."""
    found = {name for name in read_by_call(node) if stem(name) == DETACH}
    return found.difference(str(value.name) for value in node.inputs if value is not None)


def _places(node: ir.Node, lost: set[str], called: Mapping[str, str]) -> list[int]:
    """Which inputs of a node are what it was given by ``detach``."""
    given = read_by_call(node)
    values = [(i, value) for i, value in enumerate(node.inputs) if value is not None]
    names = [called.get(str(value.name), str(value.name)) for _, value in values]
    if len(values) == len(given) and _in_order(names, given, lost):
        return [i for (i, _), name in zip(values, given, strict=True) if name in lost]
    strange = [
        (i, value)
        for (i, value), name in zip(values, names, strict=True)
        if name not in given and _is_from_outside(value, node, lost, called)
    ]
    return [i for i, _ in strange] if len({value for _, value in strange}) == len(lost) else []


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
    return value.name in called or not lost.isdisjoint(sources(value))


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
