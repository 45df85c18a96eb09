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
from onnxtrain.graph.torch_export.folded import read_numbers, shape_of, take_place
from onnxtrain.graph.torch_export.traced import (
    PRODUCER,
    is_computed,
    of_number,
    parameters,
    read_by_call,
    sources,
    stem,
    tell_given,
    tensors,
)

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
    """Tensors of the same size that a tensor may have been computed from, and that are read.

    Numbers that are all the same are made of others in many ways, unless the file tells which.
    """
    made = read_numbers(value)
    one_way = bool(told) and of_number(value) is not None
    if made is None or made.size < (1 if one_way else 2):
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
        if is_uniform(tensor):
            if one_way and _is_one_result(graph, value, weight):
                yield weight
        elif told or tensor.shape == made.shape:
            yield weight


def _is_one_result(graph: ir.Graph, value: ir.Value, weight: ir.Value) -> bool:
    """Whether a tensor was computed from one weight: equal ones give results that are merged."""
    call = of_number(value)
    names = {n for node in value.consumers() for n in read_by_call(node) if stem(n) == call}
    return len(names) < 2 or not alike(graph, weight)


def alike(graph: ir.Graph, weight: ir.Value) -> list[str]:
    """Other parameters of the module that have the numbers of one."""
    others = (graph.initializers.get(name) for name in parameters(graph).values())
    pairs = ((one, one.const_value) for one in others if one is not None and one is not weight)
    return [str(one.name) for one, made in pairs if made is not None and _is_same(made, weight)]


def _is_same(made: ir.TensorProtocol, weight: ir.Value) -> bool:
    tensor = weight.const_value
    if tensor is None or made.dtype != tensor.dtype or made.shape != tensor.shape:
        return False
    return np.array_equal(made.numpy(), tensor.numpy())


def _way(value: ir.Value, weight: ir.Value) -> tuple[str, np.ndarray] | None:
    """The operator that makes a tensor of a number and a weight, and that number."""
    made, given = (one.const_value.numpy().ravel() for one in (value, weight) if one.const_value)
    if given.size and (given == given[0]).all():
        return _way_of_uniform(of_number(value), made, given)
    if np.array_equal(made, given):
        return None
    ways = (_by_number(operator, made, given) for operator in _WAYS)
    return next((way for way in ways if way is not None), None)


def _by_number(operator: str, made: np.ndarray, given: np.ndarray) -> tuple[str, np.ndarray] | None:
    """An operator and the number with which it makes all numbers of the others, bit for bit."""
    find, compute = _WAYS[operator]
    with np.errstate(all="ignore"):
        first = find(*(one[:_FEWEST].astype(np.float64) for one in (made, given)))
        middle = float(np.median(first))
        # a quick look that spares most pairs the comparison below
        if not np.allclose(first, middle, rtol=1e-2, atol=1e-2):
            return None
        for guess in (float(f"{middle:.6g}"), middle):
            number = np.array(guess, made.dtype)
            if np.isfinite(number) and np.array_equal(compute(number, given), made):
                return operator, number
    return None


def _way_of_uniform(
    call: str | None, made: np.ndarray, given: np.ndarray
) -> tuple[str, np.ndarray] | None:
    """The same for a weight of one number throughout, by the call that the tensor is called after.

    Of differences only those with 1 are read, as any number is the difference of many.
    """
    one = np.ones((), made.dtype)
    if call != "sub":
        return _by_number(str(call).capitalize(), made, given)
    rest, less = np.array_equal(one - given, made), np.array_equal(given - one, made)
    if rest == less:
        return None
    return ("Sub", one) if rest else ("Add", -one)


def _compute(
    graph: ir.Graph, value: ir.Value, weight: ir.Value, operator: str, number: np.ndarray
) -> None:
    """Let the graph make a tensor of a weight and a number."""
    name = str(value.name)
    node = ir.node(operator, [constant(graph, number, unique_name(graph, f"{name}_by")), weight])
    tell_given(node, str(weight.name))
    assert value.const_value is not None and weight.const_value is not None
    if value.const_value.shape == weight.const_value.shape:
        take_place(graph, value, node)
        return
    made = node.outputs[0]
    made.name, made.type = unique_name(graph, f"{name}_flat"), value.type
    take_place(graph, value, ir.node("Reshape", [made, shape_of(graph, value)]))
    graph.insert_before(graph[0], node)
