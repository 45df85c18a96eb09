"""Pairs of features: which of them a value has, the first or the second of each.

Pairs are the two halves of the last axis, or neighbours in it. Neighbours are taken in steps of
two, or by an axis of their own behind that of the pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.inference.products import integers
from onnxtrain.transforms.fusion.reading import (
    is_last_axis,
    is_op,
    made_by,
    number,
    part_of,
    rank,
    taken,
)


class Member(NamedTuple):
    """One of each pair of features.

    Attributes:
        source: What has the features in its last axis, or the pairs in its last two.
        size: How many pairs there are.
        second: Whether it is the second one.
        interleaved: Whether pairs are neighbours.
        divided: Whether the source has an axis for the two of a pair.
        kept: Whether the value still has that axis, of size 1.
        nodes: Those that take it out of the source.
    """

    source: ir.Value
    size: int
    second: bool
    interleaved: bool
    divided: bool
    kept: bool
    nodes: tuple[ir.Node, ...]

    def goes_with(self, other: Member) -> bool:
        """Whether both are of the same pairs, in the same form."""
        alike = self.source is other.source and self.size == other.size
        return alike and self[3:6] == other[3:6]

    @property
    def axes(self) -> int:
        """How many axes there are before that of the features."""
        return len(self.source.shape or ()) - (2 if self.divided else 1)

    @property
    def flat(self) -> ir.Value | None:
        """The value with all features in its last axis, if there is one."""
        if not self.divided:
            return self.source
        node = made_by(self.source, "Reshape")
        x = None if node is None else node.inputs[0]
        return x if x is not None and self.is_flat(x) else None

    def is_flat(self, value: ir.Value) -> bool:
        """Whether a value has the shape that all features have in one axis."""
        shape = self.source.shape
        if shape is None or value.shape is None:
            return False
        wanted = [*shape[:-2], 2 * self.size] if self.divided else [*shape]
        found = list(value.shape)
        return len(found) == len(wanted) and all(map(same_dim, found, wanted))

    def flattened(self, op: Ops) -> ir.Value:
        """The same, made where there is none."""
        if self.flat is not None:
            return self.flat
        return op.Reshape(self.source, op.ints([*[0] * self.axes, 2 * self.size]))


def member(value: ir.Value | None) -> Member | None:
    """What a value has of pairs; None if it is something else."""
    node = None if value is None else value.producer()
    if value is None or node is None:
        return None
    if is_op(node, "Squeeze"):
        inner = member(node.inputs[0])
        if inner is None or not inner.kept or not _is_last(node, node.inputs[0]):
            return None
        return inner._replace(kept=False, nodes=(*inner.nodes, node))
    if is_op(node, "Gather"):
        return _gathered(node)
    return _stepped(node) or _part(value)


def _gathered(node: ir.Node) -> Member | None:
    """Neighbours by their number in the last of two axes."""
    source, size, place = node.inputs[0], _size(node.inputs[0], -1), number(node.inputs[1])
    count = _size(source, -2)
    if source is None or size != 2 or count is None or place not in (-2, -1, 0, 1):
        return None
    kept = rank(node.inputs[1])
    if kept not in (0, 1) or not is_last_axis(source, node.attributes.get_int("axis", 0)):
        return None
    return Member(source, count, place in (-1, 1), True, True, bool(kept), (node,))


def _stepped(node: ir.Node) -> Member | None:
    """Every second feature."""
    found, size = taken(node), _size(node.inputs[0] if node.inputs else None, -1)
    source = node.inputs[0] if found is not None else None
    if found is None or source is None or size is None or found.step != 2 or size % 2:
        return None
    if (
        not is_last_axis(source, found.axis)
        or found.begin > 1
        or found.end < size - 1 + found.begin
    ):
        return None
    return Member(source, size // 2, found.begin == 1, True, False, False, (node,))


def _part(value: ir.Value) -> Member | None:
    """A half, or one of two neighbours in an axis of their own."""
    part = part_of(value)
    size = None if part is None else _size(part.whole, -1)
    if part is None or size is None or size % 2 or not is_last_axis(part.whole, part.axis):
        return None
    half = size // 2
    if (part.begin, part.end) not in ((0, half), (half, size)):
        return None
    second, count = part.begin > 0, _size(part.whole, -2)
    if size == 2 and count is not None:
        return Member(part.whole, count, second, True, True, True, (part.node,))
    return Member(part.whole, half, second, False, False, False, (part.node,))


class Joined(NamedTuple):
    """Two values side by side: one behind the other, or each element beside its partner."""

    first: ir.Value
    second: ir.Value
    stacked: bool
    nodes: tuple[ir.Node, ...]

    def fits(self, of: Member) -> bool:
        """Whether pairs come out as they went in."""
        return of.interleaved == (self.stacked or of.kept) and not (self.stacked and of.kept)


def joined(node: ir.Node | None) -> Joined | None:
    """What a Concat along the last axis puts together; None if a node is no such Concat."""
    if node is None or not is_op(node, "Concat") or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if first is None or second is None:
        return None
    if not is_last_axis(node.outputs[0], node.attributes.get_int("axis", 0)):
        return None
    opened = [made_by(value, "Unsqueeze") for value in (first, second)]
    if opened[0] is not None and opened[1] is not None:
        inner = opened[0].inputs[0], opened[1].inputs[0]
        last = all(_is_last(one, one.outputs[0]) for one in opened if one is not None)
        if last and inner[0] is not None and inner[1] is not None:
            return Joined(inner[0], inner[1], True, (opened[0], opened[1], node))
    return Joined(first, second, False, (node,))


def _is_last(node: ir.Node, value: ir.Value | None) -> bool:
    """Whether the one axis of a Squeeze or an Unsqueeze is the last one of a value."""
    given = node.attributes.get_ints("axes", None)
    axes = given if given is not None or len(node.inputs) < 2 else integers(node.inputs[1])
    return axes is not None and len(axes) == 1 and is_last_axis(value, axes[0])


def _size(value: ir.Value | None, axis: int) -> int | None:
    """The size of an axis counted from the end."""
    if value is None or value.shape is None or len(value.shape) < -axis:
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None
