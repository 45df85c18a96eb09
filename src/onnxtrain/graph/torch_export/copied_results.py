"""Results of equal parameters, which an exporter made one tensor.

Layers may begin with the same numbers, such as rates of decay that count from one. Where torch's
exporter computed something from them alone, it stores that once. What reads it still tells the call
that it read. Tables of zeros become one with all parts and rows of others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import copy, is_uniform
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.folded import read_numbers
from onnxtrain.graph.torch_export.lost import Lost, tell_merged
from onnxtrain.graph.torch_export.traced import (
    SHIFTS,
    given,
    module_of,
    moves,
    nested,
    of_number,
    parameters,
    read_by_call,
    sources,
    stem,
    tell_sources,
)

Use = tuple[ir.Node, int]


def part_results(graph: ir.Graph) -> None:
    """Give every parameter that such a tensor was computed from one of its own, in place."""
    known, made = list(parameters(graph).values()), _made(graph)
    for value, name in _results(graph):
        for module, calls in _by_module(graph, value, name, made).items():
            others = _others(graph, name, module, known)
            if len(others) < len(calls):
                others = _with_siblings(graph, others, known)
            within = any(one.rpartition(".")[0] == name.rpartition(".")[0] for one in others)
            # more of them than there are calls: the rest is read by calls that were left out, or
            # a module has a parameter that it does not read
            if len(others) == len(calls) or (len(others) > len(calls) and not within):
                for other, (call, places) in zip(others, calls.items(), strict=False):
                    _give(graph, value, call, name, other, places)


def tell_results(model: ir.Model) -> bool:
    """Write down parameters whose results may still be those of others; nothing changes."""
    lost = Lost(model.graph)
    if lost.names:
        made = _made(model.graph)
        for value, name in _results(model.graph):
            if _by_module(model.graph, value, name, made):
                tell_merged(model.graph, lost.like([name]))
    return False


def _results(graph: ir.Graph) -> Iterator[tuple[ir.Value, str]]:
    """Tensors that several nodes read, with the one parameter that they are, or are made of."""
    known = set(parameters(graph).values())
    for value in list(graph.initializers.values()) if known else ():
        names = [name for name in sources(value) if name in known]
        if value.name in known and _is_uniform(value):
            names = [str(value.name)]
        if len(names) == 1 and read_numbers(value) is not None and len(value.uses()) > 1:
            yield value, names[0]


def _made(graph: ir.Graph) -> set[str]:
    """Names of all that is there."""
    return {str(v.name) for node in graph for v in node.outputs} | set(graph.initializers)


def _by_module(
    graph: ir.Graph, value: ir.Value, name: str, made: Collection[str]
) -> dict[str, dict[str, list[Use]]]:
    """Where a tensor is read for results that are nowhere, by module and by their calls."""
    if value.name == name:
        read = _parts(value, parameters(graph), made)
    else:
        read = _read(value, made)
    modules: dict[str, dict[str, list[Use]]] = {}
    for use, call in read:
        module = module_of(use[0])
        if call is not None and module is not None:
            modules.setdefault(module, {}).setdefault(call, []).append(use)
    return modules


def _is_uniform(value: ir.Value) -> bool:
    tensor = read_numbers(value)
    return tensor is not None and is_uniform(tensor)


def _give(
    graph: ir.Graph, value: ir.Value, call: str, name: str, other: str, places: Sequence[Use]
) -> None:
    """Let nodes read a copy of a result, of another parameter.

    Of equal numbers it is not known how they were computed from that, unless by adding a number.
    """
    own = copy(graph, value, unique_name(graph, call))
    known = not _is_uniform(value) or of_number(value) in SHIFTS
    made_of = [one for one in sources(value) if one != name] if known else []
    tell_sources(own, sorted([*made_of, other]))
    for node, index in places:
        node.replace_input_with(index, own)


def _read(value: ir.Value, made: Collection[str]) -> list[tuple[Use, str | None]]:
    """Where a tensor is read for the result of a call like its own, which is nowhere."""
    name = str(value.name)
    call = stem(name.rpartition(".")[2])
    places: dict[ir.Node, list[int]] = {}
    for node, index in value.uses():
        places.setdefault(node, []).append(index)
    found: list[tuple[Use, str | None]] = []
    for node, indices in places.items():
        alike = [one for one in read_by_call(node) if stem(one) == call]
        read = [one for one in alike if one == name or one not in made]
        if len(read) == len(indices):
            pairs = zip(sorted(indices), read, strict=True)
            found += [((node, index), one) for index, one in pairs if one != name]
    return found


def _parts(
    value: ir.Value, known: Mapping[str, str], made: Collection[str]
) -> list[tuple[Use, str | None]]:
    """Where a parameter is read for what was taken of another one, and what that was called.

    What is nowhere may have been taken of the parameter itself, the first of it if nothing else
    reads that.
    """
    found: list[tuple[Use, str | None]] = []
    itself = False
    for node, index in value.uses():
        if value.name in given(node, known):
            itself = True
            continue
        taken = [one for one in read_by_call(node) if moves(one) and one not in made]
        found.append(((node, index), taken[0] if len(taken) == 1 else None))
    first = None if itself or not found else found[0][1]
    return [(use, call) for use, call in found if call != first]


def _others(graph: ir.Graph, name: str, module: str, known: Sequence[str]) -> list[str]:
    """The parameters beside another one that a module may read results of, in order.

    They are called the same in another layer or module and stored nowhere, or have the same numbers
    and no results. Equal numbers throughout do not tell.
    """
    stored_nowhere = Lost(graph)
    lost = [one for one in stored_nowhere.names if _unnumbered(one) == _unnumbered(name)]
    beside = [way.name(name) for way in stored_nowhere.others([name]) if way.tells(name)]
    results = {one for value in graph.initializers.values() for one in sources(value)}
    free = [one for one in known if one != name and one not in results]
    equal = [one for one in free if _are_equal(graph, one, name)]
    order = {node: place for place, node in enumerate(graph)}
    equal.sort(key=lambda one: min(order.get(n, 0) for n, _ in graph.initializers[one].uses()))
    for near in (lost, equal, [one for one in beside if one is not None]):
        inside = [one for one in near if one.rpartition(".")[0] == module]
        around = [one for one in near if nested(one.rpartition(".")[0], module)]
        if inside or around:
            return inside or around
    return []


def _with_siblings(graph: ir.Graph, names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Lost parameters, and those of the same module that names tell to be for the same."""
    ways = [(one, way) for one in names for way in Lost(graph).others([one])]
    near = {way.name(one) for one, way in ways if way.is_of_one_module(one) and way.tells(one)}
    return [one for one in known if one in near or one in names]


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
