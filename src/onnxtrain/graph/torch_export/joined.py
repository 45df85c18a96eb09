"""Weights that are in a file twice, since an exporter joined them with others.

An embedding may give the scores of words, too, together with a matrix that makes it wider. Torch's
exporters compute the two of them as one tensor, beside the embedding. That is right for a model
that only runs; training would let them drift apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import constant, is_uniform
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.folded import read_numbers, take_place
from onnxtrain.graph.torch_export.traced import (
    PRODUCER,
    calls,
    is_computed,
    joins,
    sources,
    tell_sources,
    tensors,
)

_FEWEST = 8
"""So many numbers are not equal to others by chance."""


@dataclasses.dataclass(frozen=True)
class _Part:
    """A weight as a part of a tensor: whether transposed, along which axis, and from where."""

    weight: ir.Value
    turned: bool
    axis: int
    begin: int


def part(model: ir.Model) -> bool:
    """Make such tensors of the weights and of what else they have, in place; whether it did."""
    graph = model.graph
    told = {name: kind for _, kind, name in tensors(graph)}
    found = False
    for value in list(graph.initializers.values()) if model.producer_name == PRODUCER else ():
        weights = _weights(graph, value, told)
        only_joined = all(map(joins, calls(value, told)))
        left = [value]
        while weights and left:
            whole = left.pop()
            place = _part(whole, weights)
            if place is not None:
                gone = str(place.weight.name) if only_joined else None
                rests = _split(graph, whole, place, gone)
                left += [rest for rest in rests if not _is_weight(graph, rest, weights)]
                found = True
    return found


def _weights(graph: ir.Graph, value: ir.Value, told: dict[str, str]) -> list[ir.Value]:
    """Weights that a tensor may have been joined of."""
    if read_numbers(value) is None:
        return []
    if told:
        names = [name for name in sources(value) if told.get(name) == "PARAMETER"]
        return [graph.initializers[name] for name in names if name in graph.initializers]
    if not is_computed(value):
        return []
    named = [one for one in graph.initializers.values() if not is_computed(one)]
    return [one for one in named if len(one.shape or ()) > 1]


def _part(value: ir.Value, weights: Sequence[ir.Value]) -> _Part | None:
    """A weight that a tensor has a part of."""
    made = read_numbers(value)
    for weight in weights:
        tensor = read_numbers(weight)
        if made is None or tensor is None or not _FEWEST <= tensor.size < made.size:
            continue
        sizes = tensor.shape.numpy()
        for turned in (False, True) if len(sizes) == 2 else (False,):
            axis = _axis(sizes[::-1] if turned else sizes, made.shape.numpy())
            if axis is None or is_uniform(tensor):
                continue
            begin = _begin(made.numpy(), tensor.numpy().T if turned else tensor.numpy(), axis)
            if begin is not None:
                return _Part(weight, turned, axis, begin)
    return None


def _is_weight(graph: ir.Graph, value: ir.Value, weights: Sequence[ir.Value]) -> bool:
    """Whether a tensor is all of a weight, which then takes its place."""
    assert value.const_value is not None
    numbers = value.const_value.numpy()
    for weight in weights:
        tensor = read_numbers(weight)
        if tensor is None or tensor.size != numbers.size:
            continue
        if np.array_equal(tensor.numpy(), numbers):
            value.replace_all_uses_with(weight)
            graph.initializers.pop(str(value.name))
            return True
        if numbers.ndim == 2 and np.array_equal(tensor.numpy().T, numbers):
            take_place(graph, value, ir.node("Transpose", [weight], {"perm": [1, 0]}))
            return True
    return False


def _axis(sizes: Sequence[int], whole: Sequence[int]) -> int | None:
    """The one axis along which a tensor may be a part of another."""
    if len(sizes) != len(whole):
        return None
    differ = [i for i, (a, b) in enumerate(zip(sizes, whole, strict=True)) if a != b]
    return differ[0] if len(differ) == 1 and sizes[differ[0]] < whole[differ[0]] else None


def _begin(whole: np.ndarray, numbers: np.ndarray, axis: int) -> int | None:
    """Where numbers stand along an axis of others, None if they do not."""
    rows, given = np.moveaxis(whole, axis, 0), np.moveaxis(numbers, axis, 0)
    count = len(rows) - len(given) + 1
    places = np.flatnonzero((rows[:count] == given[0]).reshape(count, -1).all(1))
    return next((int(p) for p in places if np.array_equal(rows[p : p + len(given)], given)), None)


def _split(graph: ir.Graph, value: ir.Value, place: _Part, gone: str | None) -> list[ir.Value]:
    """Join a tensor of a weight and of what it has before and behind it; these rests.

    They were not computed from the weight if its name is given as one that is gone.
    """
    assert value.const_value is not None and place.weight.const_value is not None
    name, axis = str(value.name), place.axis
    size = place.weight.const_value.shape.numpy()[1 - axis if place.turned else axis]
    numbers = np.split(value.const_value.numpy(), [place.begin, place.begin + size], axis)
    told = sources(value)
    if told:  # nothing else means that constants are left
        told = [one for one in told if one != gone] or [name]
    middle = place.weight
    if place.turned:
        turn = ir.node("Transpose", [middle], {"perm": [1, 0]})
        middle = turn.outputs[0]
        middle.name, middle.type = unique_name(graph, f"{name}_part"), value.type
    before, behind = (
        constant(graph, np.array(rest), unique_name(graph, f"{name}_rest")) if rest.size else None
        for rest in numbers[::2]
    )
    rests = [one for one in (before, behind) if one is not None]
    for rest in rests:
        tell_sources(rest, told)
    inputs = [one for one in (before, middle, behind) if one is not None]
    take_place(graph, value, ir.node("Concat", inputs, {"axis": axis}))
    if place.turned:
        graph.insert_before(graph[0], turn)
    return rests
