"""(a·cos - b·sin, b·cos + a·sin) for pairs (a, b) of features, put together again.

The angles are those of pairs. With the other signs it is the rotation back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.bindings import same_shape
from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.paired import Joined, Member, joined, member
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.reading import made_by, only_reader, pairs, rank
from onnxtrain.types import OWN

_DEEPEST = 4
"""How many nodes back values are compared that an exporter computes twice."""
_REPEATED = frozenset(
    {"Cast", "Cos", "Expand", "Gather", "Reshape", "Sin", "Slice", "Squeeze", "Unsqueeze"}
)
"""Operators behind such values."""


class _Turn(NamedTuple):
    """Pairs that are turned.

    Attributes:
        of: A member of them.
        cos: What multiplies the member itself.
        sin: What multiplies its partner.
        inverse: Whether they are turned back.
        nodes: The nodes that do it.
    """

    of: Member
    cos: ir.Value
    sin: ir.Value
    inverse: bool
    nodes: tuple[ir.Node, ...]


def match(node: ir.Node) -> Match | None:
    """Both sums behind each other, or as neighbours."""
    both = joined(node)
    if both is None:
        return None
    found = _turn(both)
    if found is None or not both.fits(found.of):
        return None
    _refuse_others(found, both)
    end = only_reader(node.outputs[0], "Reshape") if found.of.interleaved else None
    merged = end is not None and found.of.is_flat(end.outputs[0])
    nodes = dict.fromkeys((*found.nodes, *both.nodes, *([end] if end and merged else [])))
    return Match([*nodes], _emitter(found, merged))


def _turn(both: Joined) -> _Turn | None:
    """What two values are, if they are pairs that are turned."""
    first, second = made_by(both.first, "Sub", "Add"), made_by(both.second, "Sub", "Add")
    if first is None or second is None or first.op_type == second.op_type:
        return None
    inverse = first.op_type == "Add"
    minus, plus = (second, first) if inverse else (first, second)
    left, right = made_by(minus.inputs[0], "Mul"), made_by(minus.inputs[1], "Mul")
    if left is None or right is None:
        return None
    for (lead, cos), (trail, sin) in itertools.product(_members(left), _members(right)):
        if not lead.goes_with(trail) or trail.second == lead.second or lead.second != inverse:
            continue
        others = _added(plus, trail, cos, lead, sin)
        if others is not None:
            made = (*lead.nodes, *trail.nodes, *others, left, right, first, second)
            return _Turn(lead, cos, sin, inverse, made)
    return None


def _added(
    plus: ir.Node, own: Member, cos: ir.Value, partner: Member, sin: ir.Value
) -> tuple[ir.Node, ...] | None:
    """The nodes behind a sum, if it is own·cos + partner·sin."""
    for one, other in pairs(plus):
        left, right = made_by(one, "Mul"), made_by(other, "Mul")
        if left is None or right is None:
            continue
        for (a, c), (b, s) in itertools.product(_members(left), _members(right)):
            fits = a.goes_with(own) and a.second == own.second
            fits = fits and b.goes_with(partner) and b.second == partner.second
            if fits and _alike(c, cos) and _alike(s, sin):
                return (*a.nodes, *b.nodes, left, right)
    return None


def _members(product: ir.Node) -> Iterator[tuple[Member, ir.Value]]:
    """Factors that are one of each pair, with the other factor."""
    for value, factor in pairs(product):
        found = member(value)
        if found is not None:
            yield found, factor


def _alike(a: ir.Value | None, b: ir.Value | None, depth: int = _DEEPEST) -> bool:
    """Whether two values are one, or computed twice in the same way."""
    if a is None or b is None or a is b:
        return a is b
    if a.const_value is not None and b.const_value is not None:
        one, other = a.const_value.numpy(), b.const_value.numpy()
        return one.dtype == other.dtype and np.array_equal(one, other)
    x, y = a.producer(), b.producer()
    if x is None or y is None or not depth or len(x.outputs) > 1 or len(x.inputs) != len(y.inputs):
        return False
    if (x.domain, x.op_type) != (y.domain, y.op_type) or x.op_type not in _REPEATED:
        return False
    given = [{name: attr.value for name, attr in node.attributes.items()} for node in (x, y)]
    read = zip(x.inputs, y.inputs, strict=True)
    return given[0] == given[1] and all(_alike(*both, depth - 1) for both in read)


def _refuse_others(found: _Turn, both: Joined) -> None:
    """Angles that change the shape of what they turn, of something else, or of another type."""
    of = found.of
    part = of.nodes[-1].outputs[0]
    if not same_shape(both.first, part) or not same_shape(both.second, part):
        raise Refusal("the cosines or sines may have more elements than what they turn")
    for angles in (found.cos, found.sin):
        shape = [] if angles.shape is None else list(angles.shape)
        wanted = [of.size, 1] if of.kept else [of.size]
        if shape[-len(wanted) :] != wanted:
            raise Refusal(f"'{angles.name}' does not have an angle for each pair of features")
        if angles.dtype != of.source.dtype:
            raise Refusal(f"'{angles.name}' is of another type than what it turns")


def _emitter(found: _Turn, merged: bool) -> Callable[[Ops], ir.Value]:
    of = found.of

    def emit(op: Ops) -> ir.Value:
        angles = [found.cos, found.sin]
        if of.kept:
            angles = [op.squeeze(one, [(rank(one) or 1) - 1]) for one in angles]
        forms = {"interleaved": of.interleaved, "inverse": found.inverse}
        given: dict[str, Any] = {name: 1 for name, wanted in forms.items() if wanted}
        y: ir.Value = op.Rotate(of.flattened(op), *angles, **given, _domain=OWN)
        if merged or not of.interleaved:
            return y
        return op.Reshape(y, op.ints([*[0] * of.axes, of.size, 2]))

    return emit


PATTERN = Pattern("Rotate", frozenset({"Concat"}), match)
