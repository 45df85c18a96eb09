"""x·cos + turned(x)·sin, the positions of most language models: turned swaps halves, (-b, a)."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxtrain.graph.bindings import same_shape
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.reading import is_last_axis, made_by, pairs, part_of, rank
from onnxtrain.types import OWN


def match(total: ir.Node) -> Match | None:
    """The sum of a value and of its turned halves, each times something."""
    for one, other in pairs(total):
        plain, mixed = made_by(one, "Mul"), made_by(other, "Mul")
        if plain is None or mixed is None or plain is mixed:
            continue
        for turned, sin in pairs(mixed):
            found = _turned(turned)
            if found is None:
                continue
            x, nodes = found
            for same, cos in pairs(plain):
                if same is x:
                    _refuse_others(x, cos, sin, total.outputs[0])
                    return Match((*nodes, plain, mixed, total), _emitter(x, cos, sin))
    return None


def _turned(value: ir.Value) -> tuple[ir.Value, list[ir.Node]] | None:
    """What a value has the halves of, swapped, and the nodes that do it."""
    joined = made_by(value, "Concat")
    if joined is None or len(joined.inputs) != 2:
        return None
    if not is_last_axis(value, joined.attributes.get_int("axis", 0)):
        return None
    negated = made_by(joined.inputs[0], "Neg")
    if negated is None or negated.inputs[0] is None or joined.inputs[1] is None:
        return None
    second, first = part_of(negated.inputs[0]), part_of(joined.inputs[1])
    if second is None or first is None or second.whole is not first.whole:
        return None
    x, size = first.whole, _width(first.whole)
    if not is_last_axis(x, first.axis) or not is_last_axis(x, second.axis):
        return None
    if size is None or size % 2 or (first.begin, first.end) != (0, size // 2):
        return None
    if (second.begin, second.end) != (size // 2, size):
        return None
    parts = dict.fromkeys([first.node, second.node])
    return x, [*parts, negated, joined]


def _width(value: ir.Value | None) -> int | None:
    """The size of the last axis."""
    if value is None or value.shape is None or not len(value.shape):
        return None
    size = value.shape[-1]
    return size if isinstance(size, int) else None


def _refuse_others(x: ir.Value, cos: ir.Value, sin: ir.Value, y: ir.Value) -> None:
    """Angles that change the shape of what they turn, or are of another type."""
    if not same_shape(x, y):
        raise Refusal("the cosines or sines may have more elements than what they turn")
    for angles in (cos, sin):
        size = rank(angles)
        if size is None or size > len(y.shape or ()) or _width(angles) != _width(x):
            raise Refusal(f"'{angles.name}' does not have an angle for each feature")
        if angles.dtype != x.dtype:
            raise Refusal(f"'{angles.name}' is of another type than what it turns")


def _emitter(x: ir.Value, cos: ir.Value, sin: ir.Value) -> Callable[[Ops], ir.Value]:
    return lambda op: op.Rotate(x, cos, sin, _domain=OWN)


PATTERN = Pattern("Rotate", frozenset({"Add"}), match)
