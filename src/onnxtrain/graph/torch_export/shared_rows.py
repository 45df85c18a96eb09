"""Parameters that an exporter repeated for inputs of a fixed size.

A token before the patches of every image, or a table of positions, is one parameter that all
samples share; the type of all tokens is one row of a table, and distances between them are rows
that many pairs share. For inputs of a fixed size, torch's exporter stores what it becomes for each
of them. That is right for a model that only runs; training would give every one its own.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import constant, is_uniform
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.folded import read_numbers, shape_of, take_place
from onnxtrain.graph.torch_export.traced import (
    SHIFTS,
    calls,
    moves,
    one_place,
    parameters,
    read_by_call,
    repeats,
    shapes,
    sources,
    stem,
    tell_given,
    tell_sources,
    tensors,
)

_LOOKED_UP = "embedding"
_ALIKE = {"expand": 2, "repeat": 3, _LOOKED_UP: 3}
"""What results are called that samples share, and how many axes they have then at least."""
_TILERS = frozenset({"expand", "repeat", "tile"})
"""Calls that write numbers again for every sample."""
_ROUNDED = 1e-5
"""How much sums may differ by rounding, as a part of the largest."""
_LARGEST = 2**20
"""More numbers than this the exporter does not repeat."""


def share_rows(model: ir.Model) -> bool:
    """Make such a tensor of what it has once, in place; whether there was one."""
    graph = model.graph
    known, batches = set(parameters(graph).values()), _batches(graph)
    told = {name for _, _, name in tensors(graph)}
    found = False
    for value in list(graph.initializers.values()) if known else ():
        if known.isdisjoint(sources(value)):
            continue
        name, stored = str(value.name), value
        merged = any(name not in (read_by_call(node) or [name]) for node, _ in value.uses())
        once = _once(value, batches)
        if once is None and (number := _number(value, told)) is not None:
            found = _expand(graph, value, number, *known.intersection(sources(value))) or found
            continue
        if once is None and not _TILERS.isdisjoint(calls(value, told)):
            once = _tile(value, batches)
        if once is not None:
            stored = _share(graph, value, once)
        rows = (None if merged else _row(stored, name, told)) or _rows(stored, name)
        if rows is not None:
            _gather(graph, stored, *rows)
        found = found or once is not None or rows is not None
    return found


def _batches(graph: ir.Graph) -> set[int]:
    """Fixed sizes of batches: how many samples the inputs have, more than one."""
    shapes = [value.shape for value in graph.inputs if value.name not in graph.initializers]
    sizes = [shape[0] for shape in shapes if shape is not None and len(shape)]
    return {size for size in sizes if isinstance(size, int) and size > 1}


def _once(value: ir.Value, batches: set[int]) -> np.ndarray | None:
    """What a tensor has for every sample alike, None if it has nothing so.

    Equal numbers do not tell, but that the tensor was expanded or looked up in a table does.
    """
    made = read_numbers(value)
    if made is None or not made.size:
        return None
    numbers, axes = made.numpy(), range(len(made.shape))
    if is_uniform(made):
        least = next((n for call, n in _ALIKE.items() if str(value.name).startswith(call)), None)
        axes = range(0 if least is None or numbers.ndim < least else 1)
    for axis in axes:
        first = numbers.take([0], axis)
        if numbers.shape[axis] in batches and np.array_equal(
            np.broadcast_to(first, numbers.shape), numbers
        ):
            return first
    return None


def _number(value: ir.Value, known: Collection[str]) -> np.ndarray | None:
    """The one number that a vector is made of by nothing but expanding it."""
    made = read_numbers(value)
    if made is None or len(made.shape) != 1 or not made.size or not is_uniform(made):
        return None
    expanded = stem(str(value.name).rpartition(".")[2]) == "expand"
    plain = all(map(shapes, calls(value, known)))
    alone = len([name for name in sources(value) if name in known]) == 1
    return made.numpy()[:1] if expanded and plain and alone else None


def _tile(value: ir.Value, batches: set[int]) -> np.ndarray | None:
    """The same where samples share an axis with something else, as heads of attention do."""
    made = read_numbers(value)
    if made is None or not made.size or is_uniform(made):
        return None
    numbers = made.numpy()
    for axis, size in enumerate(numbers.shape):
        for samples in batches:
            if size % samples or size == samples:
                continue
            first, *others = np.split(numbers, samples, axis)
            if all(np.array_equal(first, other) for other in others):
                return first
    return None


def _row(
    value: ir.Value, name: str, known: Collection[str]
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """The same for a row of equal numbers that was looked up for all places, if places tell so."""
    made = read_numbers(value)
    if made is None or not name.startswith(_LOOKED_UP) or not is_uniform(made):
        return None
    numbers = made.numpy()
    if numbers.ndim < 2 or numbers.size == numbers.shape[-1] or not one_place(value, known):
        return None
    places = np.zeros(numbers.shape[:-1], np.int64)
    return numbers.reshape(-1, numbers.shape[-1])[:1], places, numbers.ndim - 1


def _rows(value: ir.Value, name: str) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Rows that a tensor has more than once, where each of them stands, and along which axis.

    What was only moved, or looked up and shifted, tells by rows of which some, not all, are the
    same. Numbers of which many are equal tell nothing.
    """
    made = read_numbers(value)
    moved = moves(name) or (stem(name) in SHIFTS and any(map(repeats, sources(value))))
    if made is None or not moved or not 1 < made.size <= _LARGEST or is_uniform(made):
        return None
    numbers = made.numpy()
    found = [_along(numbers, axis) for axis in range(numbers.ndim) if numbers.shape[axis] > 1]
    rows, places, axis = min(found, key=lambda one: one[0].size)
    if rows.size == numbers.size and any(map(repeats, (name, *sources(value)))):
        return _numbers(numbers)
    if rows.size == numbers.size or not (repeats(name) or _tell(rows, places)):
        return None
    if not moves(name) and _is_shifted(rows):
        return None
    return (rows, places, axis) if 2 * np.unique(rows).size > rows.size else None


def _numbers(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, int] | None:
    """The same for rows of one number, as attention with one head has, most of them repeated."""
    rows, places = np.unique(numbers, return_inverse=True)
    often = np.bincount(places.ravel()) > 1
    if 2 * rows.size > numbers.size or not rows[often].all():
        return None
    return rows, places.reshape(numbers.shape).astype(np.int64), numbers.ndim


def _tell(rows: np.ndarray, places: np.ndarray) -> bool:
    """Whether there are several rows, and none of equal numbers (a pruned one) comes again."""
    again = rows[np.bincount(places.ravel()) > 1]
    return len(rows) > 1 and not bool((again == again[:, :1]).all(1).any())


def _is_shifted(rows: np.ndarray) -> bool:
    """Whether a column is another one with a number added: of one that the table has, not two."""
    spread = np.ptp(rows[:, 1:] - rows[:, :-1], axis=0)
    return bool((spread <= _ROUNDED * np.abs(rows).max()).any())


def _along(numbers: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The different rows along an axis, and for every place of the others which one it has."""
    moved = np.moveaxis(numbers, axis, -1)
    size = moved.shape[-1]
    flat = np.ascontiguousarray(moved.reshape(-1, size))
    whole = flat.view(np.dtype((np.void, flat.itemsize * size))).ravel()
    _, first, places = np.unique(whole, return_index=True, return_inverse=True)
    return flat[first], places.reshape(moved.shape[:-1]).astype(np.int64), axis


def _expand(graph: ir.Graph, value: ir.Value, number: np.ndarray, name: str) -> bool:
    """Let the graph expand a parameter of one number, unless it is there already."""
    if name in graph.initializers:
        return False
    node = ir.node("Expand", [constant(graph, number, name), shape_of(graph, value)])
    tell_given(node, name)
    take_place(graph, value, node)
    return True


def _share(graph: ir.Graph, value: ir.Value, once: np.ndarray) -> ir.Value:
    """Let the graph repeat what is stored once, and give that."""
    stored = _stored(graph, value, once)
    sizes = shape_of(graph, value)
    assert sizes.const_value is not None
    times = sizes.const_value.numpy() // once.shape
    if all(few == 1 or many == 1 for few, many in zip(once.shape, times, strict=True)):
        take_place(graph, value, ir.node("Expand", [stored, sizes]))
    else:
        sizes.const_value = ir.Tensor(times, name=sizes.name)
        take_place(graph, value, ir.node("Tile", [stored, sizes]))
    return stored


def _gather(
    graph: ir.Graph, value: ir.Value, rows: np.ndarray, places: np.ndarray, axis: int
) -> None:
    """Let the graph take every row from where it is stored once."""
    if len(rows) == 1:
        sizes = [rows.size if i == axis else 1 for i in range(places.ndim + 1)]
        _share(graph, value, rows.reshape(sizes))
        return
    name = str(value.name)
    stored = _stored(graph, value, rows)
    indices = constant(graph, places, unique_name(graph, f"{name}_places"))
    node = ir.node("Gather", [stored, indices])
    if axis == places.ndim:
        take_place(graph, value, node)
        return
    order = [*range(axis), places.ndim, *range(axis, places.ndim)]
    taken = node.outputs[0]
    taken.name, taken.type = unique_name(graph, f"{name}_taken"), value.type
    take_place(graph, value, ir.node("Transpose", [taken], {"perm": order}))
    graph.insert_before(graph[0], node)


def _stored(graph: ir.Graph, value: ir.Value, numbers: np.ndarray) -> ir.Value:
    """A constant of what a tensor was made of, in its place."""
    stored = constant(graph, numbers, unique_name(graph, f"{value.name}_once"))
    tell_sources(stored, sources(value))
    return stored
