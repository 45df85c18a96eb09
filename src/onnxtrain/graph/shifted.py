"""Parameters that are in a file beside a multiple of them, or what is left of a number.

A share of one thing and the rest of another, ``x * a + y * (1 - a)``: torch's exporters compute the
second factor, as the first one does not change in a model that only runs. Training would change
each of them for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import constant, is_uniform
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.folded import read_numbers, shape_of, take_place
from onnxtrain.graph.traced import PRODUCER, is_computed, sources, tensors

_FEWEST = 8
"""So many numbers are not made of others by chance, where the file does not tell."""
_WAYS: dict[str, tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]] = {
    "Sub": (np.add, lambda number, weight: number - weight),
    "Add": (np.subtract, lambda number, weight: number + weight),
    "Mul": (np.divide, lambda number, weight: number * weight),
}
"""Operators with a number and a weight: how the number is found, and what they give."""


def shift(model: ir.Model) -> bool:
    """Make such tensors of the parameters again, in place; whether there were any."""
    graph = model.graph
    told = {name: kind for _, kind, name in tensors(graph)}
    found = False
    for value in list(graph.initializers.values()) if model.producer_name == PRODUCER else ():
        ways = [
            (weight, *way)
            for weight in _weights(graph, value, told)
            if (way := _way(value, weight)) is not None
        ]
        if len(ways) == 1:
            _compute(graph, value, *ways[0])
            found = True
    return found


def _weights(graph: ir.Graph, value: ir.Value, told: dict[str, str]) -> Iterator[ir.Value]:
    """Tensors of the same size that a tensor may have been computed from, and that are read."""
    made = read_numbers(value)
    if made is None or made.size < 2:
        return
    if told:
        names = [name for name in sources(value) if told.get(name) == "PARAMETER"]
        near = [graph.initializers[n] for n in names if n in graph.initializers]
    else:
        near = list(graph.initializers.values()) if is_computed(value) else []
        near = [one for one in near if not is_computed(one)] if made.size >= _FEWEST else []
    for weight in near:
        tensor = read_numbers(weight)
        if tensor is None or tensor.size != made.size or tensor.dtype != made.dtype:
            continue
        if (told or tensor.shape == made.shape) and not is_uniform(tensor):
            yield weight


def _way(value: ir.Value, weight: ir.Value) -> tuple[str, np.ndarray] | None:
    """The operator that makes a tensor of a number and a weight, and that number."""
    made, given = (one.const_value.numpy().ravel() for one in (value, weight) if one.const_value)
    if np.array_equal(made, given):
        return None
    with np.errstate(all="ignore"):
        for operator, (find, compute) in _WAYS.items():
            first = find(*(one[:_FEWEST].astype(np.float64) for one in (made, given)))
            middle = float(np.median(first))
            # a quick look that spares most pairs the comparison below, which is bit for bit
            if not np.allclose(first, middle, rtol=1e-2, atol=1e-2):
                continue
            for guess in (float(f"{middle:.6g}"), middle):
                number = np.array(guess, made.dtype)
                if np.isfinite(number) and np.array_equal(compute(number, given), made):
                    return operator, number
    return None


def _compute(
    graph: ir.Graph, value: ir.Value, weight: ir.Value, operator: str, number: np.ndarray
) -> None:
    """Let the graph make a tensor of a weight and a number."""
    name = str(value.name)
    node = ir.node(operator, [constant(graph, number, unique_name(graph, f"{name}_by")), weight])
    assert value.const_value is not None and weight.const_value is not None
    if value.const_value.shape == weight.const_value.shape:
        take_place(graph, value, node)
        return
    made = node.outputs[0]
    made.name, made.type = unique_name(graph, f"{name}_flat"), value.type
    take_place(graph, value, ir.node("Reshape", [made, shape_of(graph, value)]))
    graph.insert_before(graph[0], node)
