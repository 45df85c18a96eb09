"""Parameters of which a file only has a function that can be inverted.

A scale that is stored as its logarithm, a share as what a sigmoid makes it of: torch's exporter
computes the function, and the parameter is gone. Its numbers follow from those of the result. So do
those of a parameter that is multiplied by a number, where the file still has the number.

The beta of a softplus is nowhere; it is taken as 1, which it is unless a module says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import constant
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.folded import read_numbers, take_place
from onnxtrain.graph.torch_export.traced import (
    SOFTPLUS,
    of_number,
    parameters,
    read_by_call,
    shapes,
    sources,
    stem,
    tell_sources,
    tensors,
)

_INVERSES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "exp": ("Exp", np.log),
    "sigmoid": ("Sigmoid", lambda numbers: np.log(numbers) - np.log1p(-numbers)),
    SOFTPLUS: ("Softplus", lambda numbers: numbers + np.log(-np.expm1(-numbers))),
    "tanh": ("Tanh", np.arctanh),
}
"""Functions by the name of their call: the operator, and what inverts it."""
_NEGATED = "neg"
_SCALED = "self_scaled"
"""What is inside of every softplus, once."""
_INSIDE = frozenset({
    *("beta", "beta_0", "beta_0_cast", "beta_cast", _SCALED, "threshold", "threshold_cast", "tmp"),
    "tmp_1",
})  # fmt: skip
"""What else is; the softplus of one is there, too."""


def invert(model: ir.Model) -> bool:
    """Let the graph compute such functions of their parameters, in place; whether it has any."""
    graph = model.graph
    known, told = set(parameters(graph).values()), {name for _, _, name in tensors(graph)}
    found = False
    for value in list(graph.initializers.values()) if known else ():
        factor = _factor(graph, value, known)
        if factor is not None:
            _divide(graph, value, factor)
            found = True
            continue
        call = _function(value, known, told)
        made = read_numbers(value) if call is not None else None
        if call is None or made is None or _is_held_again(graph, value, known):
            continue
        if not _is_read_as_itself(value):
            continue
        numbers = made.numpy().astype(np.float64)
        negative = call == "exp" and bool((numbers < 0).all())
        operator, inverse = _INVERSES[call]
        with np.errstate(all="ignore"):
            before = inverse(-numbers if negative else numbers).astype(made.dtype.numpy())
        if np.isfinite(before).all() and before.size:
            _compute(graph, value, before, operator, negative)
            found = True
    return found


def _function(value: ir.Value, known: set[str], told: set[str]) -> str | None:
    """The one such function that a tensor is of one parameter, up to its shape and its sign."""
    names = [str(value.name), *(name for name in sources(value) if name not in told)]
    calls = _without_insides([stem(name.rpartition(".")[2]) for name in names])
    functions = [call for call in calls if call in _INVERSES]
    rest = {call for call in calls if call not in _INVERSES and not shapes(call)}
    of = [name for name in sources(value) if name in told]
    if len(functions) != 1 or rest - {_NEGATED} or len(of) != 1 or of[0] not in known:
        return None
    return functions[0] if functions[0] == "exp" or not rest else None


def _without_insides(calls: list[str]) -> list[str]:
    """Calls without those that the one softplus among them is made of."""
    if calls.count(_SCALED) != 1 or SOFTPLUS not in calls:
        return calls
    rest = [call for call in calls if call not in _INSIDE]
    rest.remove(SOFTPLUS)
    return rest


def _factor(graph: ir.Graph, value: ir.Value, known: set[str]) -> ir.Value | None:
    """The number that a tensor is one parameter times, if it can be divided by it again."""
    made = read_numbers(value) if of_number(value) == "mul" else None
    if made is None or not made.size or len(known.intersection(sources(value))) != 1:
        return None
    alone = _is_read_as_itself(value) and not _is_held_again(graph, value, known)
    for name in sources(value) if alone else ():
        factor = graph.initializers.get(name)
        number = None if factor is None else factor.const_value
        if number is None or number.size != 1 or number.dtype != made.dtype:
            continue
        with np.errstate(all="ignore"):
            if np.isfinite(made.numpy() / number.numpy()).all():
                return factor
    return None


def _divide(graph: ir.Graph, value: ir.Value, factor: ir.Value) -> None:
    """Let the graph compute a tensor from a parameter and a number."""
    assert value.const_value is not None and factor.const_value is not None
    numbers = value.const_value.numpy() / factor.const_value.numpy().reshape(())
    take_place(graph, value, ir.node("Mul", [_parameter(graph, value, numbers), factor]))


def _is_held_again(graph: ir.Graph, value: ir.Value, known: set[str]) -> bool:
    """Whether another tensor is the parameter of one, too, or was computed from it."""
    (name,) = known.intersection(sources(value))
    others = [one for one in graph.initializers.values() if one is not value]
    return any(name == one.name or name in sources(one) for one in others)


def _is_read_as_itself(value: ir.Value) -> bool:
    """Whether no node was given the result of another call, which had the same numbers."""
    call = stem(str(value.name).rpartition(".")[2])
    told = [read_by_call(node) for node in value.consumers()]
    return all(call in map(stem, names) for names in told if names)


def _compute(
    graph: ir.Graph, value: ir.Value, numbers: np.ndarray, operator: str, negative: bool
) -> None:
    """Let the graph compute a tensor from a parameter of these numbers."""
    parameter = _parameter(graph, value, numbers)
    if operator == _INVERSES[SOFTPLUS][0]:
        tell_sources(parameter, [str(parameter.name), SOFTPLUS])
    node = ir.node(operator, [parameter])
    if not negative:
        take_place(graph, value, node)
        return
    made = node.outputs[0]
    made.name, made.type = unique_name(graph, f"{value.name}_positive"), value.type
    take_place(graph, value, ir.node("Neg", [made]))
    graph.insert_before(graph[0], node)


def _parameter(graph: ir.Graph, value: ir.Value, numbers: np.ndarray) -> ir.Value:
    """The parameter that a tensor was computed from, with these numbers."""
    name = next(one for one in sources(value) if one in parameters(graph).values())
    return constant(graph, numbers, unique_name(graph, name))
