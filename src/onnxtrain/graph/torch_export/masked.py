"""Tables with a mask, which an exporter added to them.

Windows of an image share a table of distances, and each of them hides some pairs with a large
negative number. For inputs of a fixed size torch's exporter stores the sum. That is right for a
model that only runs; training would give every window a table of its own.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import constant
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.torch_export.folded import read_numbers, take_place
from onnxtrain.graph.torch_export.traced import (
    SHIFTS,
    parameters,
    repeats,
    sources,
    stem,
    tell_sources,
)

_HIDDEN = -16.0
"""What hides a pair is less than this."""
_ROUNDED = 1e-4
"""How much numbers that hide may differ by rounding, as a part of them."""


def unmask(model: ir.Model) -> bool:
    """Let the graph add such masks to their tables, in place; whether there were any."""
    graph = model.graph
    known = set(parameters(graph).values())
    found = False
    for value in list(graph.initializers.values()) if known else ():
        looked_up = [name for name in sources(value) if repeats(name)]
        learned = known.intersection(sources(value))
        if stem(str(value.name)) not in SHIFTS or not looked_up or len(learned) != 1:
            continue
        terms = _terms(value)
        if terms is not None:
            table, mask = (
                constant(graph, numbers, unique_name(graph, name))
                for numbers, name in zip(terms, (looked_up[0], f"{value.name}_mask"), strict=True)
            )
            tell_sources(table, sources(value))
            take_place(graph, value, ir.node("Add", [table, mask]))
            found = True
    return found


def _terms(value: ir.Value) -> tuple[np.ndarray, np.ndarray] | None:
    """A table that all along one axis share, and a mask of zeros and one other number."""
    made = read_numbers(value)
    axes = () if made is None else range(len(made.shape) - 2)
    found = (_along(made.numpy(), axis) for axis in axes if made is not None)
    return next((terms for terms in found if terms is not None), None)


def _along(numbers: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The same for one of the axes: what nothing hides is the largest number there."""
    table = numbers.max(axis, keepdims=True)
    if (table < _HIDDEN).any():
        return None
    rest = numbers - table
    hidden = rest < _HIDDEN
    if not hidden.any() or rest[~hidden].any():
        return None
    number = np.median(rest[hidden])
    if not np.allclose(rest[hidden], number, rtol=_ROUNDED, atol=0):
        return None
    mask = np.where(hidden, np.round(number), 0).astype(numbers.dtype)
    return table, _narrowed(mask)


def _narrowed(mask: np.ndarray) -> np.ndarray:
    """A mask with one place on the axes along which it is the same."""
    for axis in range(mask.ndim):
        first = mask.take([0], axis)
        if np.array_equal(np.broadcast_to(first, mask.shape), mask):
            mask = first
    return mask
