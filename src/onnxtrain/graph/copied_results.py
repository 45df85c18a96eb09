"""Results of equal parameters, which an exporter made one tensor.

Layers may begin with the same numbers, such as rates of decay that count from one. Where torch's
exporter computed something from them alone, it stores that once. What reads it still tells the call
that it read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import copy, is_uniform
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.folded import read_numbers
from onnxtrain.graph.traced import (
    held_names,
    module_of,
    nested,
    parameters,
    read_by_call,
    sources,
    stem,
    tell_sources,
)

Use = tuple[ir.Node, int]


def part_results(graph: ir.Graph) -> None:
    """Give every parameter that such a tensor was computed from one of its own, in place."""
    known = list(parameters(graph).values())
    if not known:
        return
    of_module = set(known)
    made = {str(v.name) for node in graph for v in node.outputs} | set(graph.initializers)
    for value in list(graph.initializers.values()):
        names = [name for name in sources(value) if name in of_module]
        if len(names) != 1 or read_numbers(value) is None or len(value.uses()) < 2:
            continue
        modules: dict[str, dict[str, list[Use]]] = {}
        for node, index in value.uses():
            call, module = _read(node, str(value.name), made), module_of(node)
            if call is not None and module is not None:
                modules.setdefault(module, {}).setdefault(call, []).append((node, index))
        for module, calls in modules.items():
            others = _others(graph, names[0], module, known)
            if len(others) == len(calls):
                for other, (call, places) in zip(others, calls.items(), strict=True):
                    _give(graph, value, call, names[0], other, places)


def _give(
    graph: ir.Graph, value: ir.Value, call: str, name: str, other: str, places: Sequence[Use]
) -> None:
    """Let nodes read a copy of a result, of another parameter."""
    own = copy(graph, value, unique_name(graph, call))
    tell_sources(own, [other if one == name else one for one in sources(value)])
    for node, index in places:
        node.replace_input_with(index, own)


def _read(node: ir.Node, name: str, made: Collection[str]) -> str | None:
    """The call like that of a tensor which a node was given instead, and which is nowhere."""
    reads = read_by_call(node)
    alike = [one for one in reads if stem(one) == stem(name) and one not in made]
    return alike[0] if name not in reads and len(alike) == 1 else None


def _others(graph: ir.Graph, name: str, module: str, known: Sequence[str]) -> list[str]:
    """The parameters beside another one that a module may read results of, in order.

    They are called the same in another layer and stored nowhere, or have the same numbers and no
    results. Equal numbers throughout do not tell.
    """
    held = held_names(graph)
    lost = [one for one in known if one not in held and _unnumbered(one) == _unnumbered(name)]
    results = {one for value in graph.initializers.values() for one in sources(value)}
    free = [one for one in known if one != name and one not in results]
    equal = [one for one in free if _are_equal(graph, one, name)]
    order = {node: place for place, node in enumerate(graph)}
    equal.sort(key=lambda one: min(order.get(n, 0) for n, _ in graph.initializers[one].uses()))
    for near in (lost, equal):
        inside = [one for one in near if one.rpartition(".")[0] == module]
        around = [one for one in near if nested(one.rpartition(".")[0], module)]
        if inside or around:
            return inside or around
    return []


def _unnumbered(name: str) -> list[str]:
    """The path of a parameter without the numbers of layers."""
    return [part for part in name.split(".") if not part.isdecimal()]


def _are_equal(graph: ir.Graph, one: str, other: str) -> bool:
    """Whether two parameters are stored with the same numbers."""
    values = [graph.initializers.get(name) for name in (one, other)]
    tensors = [tensor for value in values if value and (tensor := read_numbers(value)) is not None]
    if len(tensors) < 2 or is_uniform(tensors[0]):
        return False
    return np.array_equal(tensors[0].numpy(), tensors[1].numpy())
