"""Parts of a parameter that have rows in common, which an exporter stored one by one.

Positions of the first tokens, and those of all of them, are rows of one table. For inputs of a
fixed size torch's exporter computes both. Training would let what they have in common drift apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import constant
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.folded import read_numbers, take_place
from onnxtrain.graph.torch_export.traced import (
    calls,
    moves,
    parameters,
    shapes,
    sources,
    tell_sources,
    tensors,
)

_FEWEST = 4
"""Rows of so many numbers are not equal by chance."""
_LARGEST = 2**20
"""Parts with more numbers than this the exporter does not compute."""
_LOOKED_UP = "embedding"
"""How results are called whose places were computed, too."""


def join_parts(model: ir.Model) -> bool:
    """Take such parts of what they have together, in place; whether there were any."""
    graph = model.graph
    known = set(parameters(graph).values())
    told = {name for _, _, name in tensors(graph)}
    groups: dict[str, list[ir.Value]] = {}
    for value in list(graph.initializers.values()) if known else ():
        names = known.intersection([str(value.name)] if value.name in known else sources(value))
        if len(names) == 1 and read_numbers(value) is not None and _is_part(value, known, told):
            groups.setdefault(names.pop(), []).append(value)
    found = False
    for parts in groups.values():
        for some, axis in _alike(parts):
            if all(value.name in graph.initializers for value in some):
                found = _join(graph, some, axis) or found
    return found


def _is_part(value: ir.Value, known: Collection[str], told: Collection[str]) -> bool:
    """Whether a tensor is a parameter, or has numbers of one, as far as names tell."""
    if value.name in known:
        return True
    if _numbers(value).size > _LARGEST:
        return False
    looked_up = str(value.name).startswith(_LOOKED_UP)
    on_the_way = calls(value, told)
    return moves(str(value.name)) and (
        looked_up or all(moves(call) or shapes(call) for call in on_the_way)
    )


def _alike(parts: Sequence[ir.Value]) -> Iterator[tuple[list[ir.Value], int]]:
    """Tensors with rows of the same length, or matrices with such columns, and along which axis."""
    for axis in (-1, 0):
        by_size: dict[object, list[ir.Value]] = {}
        for value in parts:
            sizes = list(_numbers(value).shape)
            if len(sizes) > 1 and sizes[axis] >= _FEWEST and (axis or len(sizes) == 2):
                by_size.setdefault((sizes[axis], value.dtype), []).append(value)
        for some in by_size.values():
            if len(some) > 1:
                # the parameter itself, if it is there, before all that was made of it
                yield sorted(some, key=lambda value: bool(sources(value))), axis


def _numbers(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return value.const_value.numpy()


def _join(graph: ir.Graph, parts: Sequence[ir.Value], axis: int) -> bool:
    """Take tensors of one that has all their rows, if they have some in common."""
    index: dict[bytes, int] = {}
    lines = [_lines(value, axis) for value in parts]
    places = [[index.setdefault(line.tobytes(), len(index)) for line in some] for some in lines]
    every = np.concatenate(lines)
    whole = np.concatenate([np.array(some) for some in places])
    again = np.bincount(whole)[whole] > 1
    alone = all(len(set(some)) == len(some) for some in places)
    if not again.any() or not alone or bool((every[again] == every[again][:, :1]).all(1).any()):
        return False
    is_all = len(index) == len(lines[0]) and not sources(parts[0])
    if is_all:
        stored, taken = _flat(graph, parts[0], axis), list(zip(parts, places, strict=True))[1:]
    else:
        first = [int(place) for place in np.unique(whole, return_index=True)[1]]
        table = every[first] if axis else every[first].T.copy()
        stored = constant(graph, table, unique_name(graph, f"{parts[0].name}_once"))
        tell_sources(stored, sources(parts[0]))
        taken = list(zip(parts, places, strict=True))
    for value, at in taken:
        sizes = _numbers(value).shape
        numbers = np.array(at, np.int64).reshape(sizes[:-1] if axis else sizes[1:])
        where = constant(graph, numbers, unique_name(graph, f"{value.name}_places"))
        take_place(graph, value, ir.node("Gather", [stored, where], {"axis": 0 if axis else 1}))
    _first(graph, stored)
    return True


def _flat(graph: ir.Graph, value: ir.Value, axis: int) -> ir.Value:
    """A parameter as a table of rows."""
    sizes = _numbers(value).shape
    if axis == 0 or len(sizes) == 2:
        return value
    name = unique_name(graph, f"{value.name}_rows")
    shape = constant(graph, np.array([-1, sizes[-1]]), unique_name(graph, f"{name}_shape"))
    flat = ir.node("Reshape", [value, shape]).outputs[0]
    flat.name, flat.type = name, value.type
    return flat


def _first(graph: ir.Graph, value: ir.Value) -> None:
    """Put the node that makes a value in front of all, if it is a new one."""
    node = value.producer()
    if node is not None and node.graph is None:
        graph.insert_before(graph[0], node)


def _lines(value: ir.Value, axis: int) -> np.ndarray:
    """The rows of a tensor, or the columns of a matrix."""
    numbers = _numbers(value)
    lines: np.ndarray = numbers.reshape(-1, numbers.shape[-1]) if axis else numbers.T
    return lines
