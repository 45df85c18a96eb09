"""Where, as TensorFlow's converter writes it: float(c)·a + float(not c)·b.

The two are the same for finite numbers. A condition that was made as large as `a` by ones in its
shape goes without them: Where does that.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.pattern import Match, Pattern
from onnxtrain.transforms.fusion.reading import made_by, number, opset_of, pairs
from onnxtrain.types import DataType

_SINCE = 9
"""The first opset with Where."""


def match(total: ir.Node) -> Match | None:
    """A sum of two products, with a condition and with its opposite."""
    if opset_of(total) < _SINCE:
        return None
    for left, right in pairs(total):
        first, second = made_by(left, "Mul"), made_by(right, "Mul")
        if first is None or second is None or first is second:
            continue
        for condition, a in _chosen(first):
            for opposite, b in _chosen(second):
                negation = made_by(opposite, "Not")
                if negation is not None and negation.inputs[0] is condition:
                    return Match([first, second, total], _emitter(condition, a, b))
    return None


def _chosen(product: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """Conditions that a product multiplies by as numbers, each with what it multiplies."""
    found = []
    for factor, value in pairs(product):
        cast = made_by(factor, "Cast")
        condition = None if cast is None else cast.inputs[0]
        if condition is not None and condition.dtype == DataType.BOOL:
            found.append((condition, value))
    return found


def _emitter(condition: ir.Value, a: ir.Value, b: ir.Value) -> Callable[[Ops], ir.Value]:
    def emit(op: Ops) -> ir.Value:
        return op.Where(_smaller(condition, a), a, b)

    return emit


def _smaller(condition: ir.Value, like: ir.Value) -> ir.Value:
    """A condition without ones in the shape of a value beside which it is read."""
    both = made_by(condition, "And")
    for ones, rest in pairs(both) if both is not None else ():
        if _is_ones_like(ones, like) and _fits(rest, like):
            return _smaller(rest, like)
    return condition


def _is_ones_like(value: ir.Value, like: ir.Value) -> bool:
    """Whether a value is true everywhere, in the shape of another one."""
    expanded = made_by(value, "Expand")
    if expanded is None or number(expanded.inputs[0]) != 1:
        return False
    sizes = expanded.inputs[1]
    while (cast := made_by(sizes, "Cast")) is not None:
        sizes = cast.inputs[0]
    measured = made_by(sizes, "Shape")
    return measured is not None and measured.inputs[0] is like and not measured.attributes


def _fits(value: ir.Value, like: ir.Value) -> bool:
    """Whether a value is certainly no larger than another one."""
    if value.shape is None or like.shape is None or len(value.shape) > len(like.shape):
        return False
    sizes = zip(reversed(tuple(value.shape)), reversed(tuple(like.shape)), strict=False)
    return all(size == 1 or same_dim(size, other) for size, other in sizes)


PATTERN = Pattern("Where", frozenset({"Add"}), match)
