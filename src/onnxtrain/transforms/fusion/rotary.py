"""x·cos + turned(x)·sin, the positions of most language models: turned makes (-b, a) of (a, b).

These pairs are the halves of the features, or neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onnxtrain.graph.bindings import same_shape
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.paired import Member, joined, member
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.reading import made_by, pairs, rank
from onnxtrain.types import OWN


def match(total: ir.Node) -> Match | None:
    """The sum of a value and of its turned pairs, each times something."""
    for one, other in pairs(total):
        plain, mixed = made_by(one, "Mul"), made_by(other, "Mul")
        if plain is None or mixed is None or plain is mixed:
            continue
        for turned, sin in pairs(mixed):
            found = _turned(turned)
            if found is None:
                continue
            x, of, nodes = found
            for same, cos in pairs(plain):
                if same is x:
                    _refuse_others(x, cos, sin, total.outputs[0])
                    emit = _emitter(x, cos, sin, of.interleaved)
                    return Match((*nodes, plain, mixed, total), emit)
    return None


def _turned(value: ir.Value) -> tuple[ir.Value, Member, list[ir.Node]] | None:
    """What a value has the pairs of, turned, one member of them, and the nodes that do it."""
    end = made_by(value, "Reshape")
    both = joined(value.producer() if end is None else made_by(end.inputs[0], "Concat"))
    negated = None if both is None else made_by(both.first, "Neg")
    if both is None or negated is None:
        return None
    second, first = member(negated.inputs[0]), member(both.second)
    if second is None or first is None or not first.goes_with(second):
        return None
    x = first.flat
    swapped = second.second and not first.second and both.fits(first)
    if x is None or not swapped or first.interleaved != (end is not None):
        return None
    if not first.is_flat(value):
        return None
    nodes = (*first.nodes, *second.nodes, negated, *both.nodes, *([] if end is None else [end]))
    return x, first, [*dict.fromkeys(nodes)]


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


def _emitter(
    x: ir.Value, cos: ir.Value, sin: ir.Value, interleaved: bool
) -> Callable[[Ops], ir.Value]:
    given: dict[str, Any] = {"interleaved": 1} if interleaved else {}
    return lambda op: op.Rotate(x, cos, sin, **given, _domain=OWN)


PATTERN = Pattern("Rotate", frozenset({"Add"}), match)
