"""Where a forward pass is cut into parts of which each can be computed again from its beginning.

A cut takes some place in the order of the nodes and keeps what is alive there: of a model of layers
with residual connections that is one value, between two of them.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import onnx_ir as ir

from onnxtrain.graph.edit import reads
from onnxtrain.transforms.recompute.forward import Forward, bytes_of

TRIES = 64
"""How many sizes of a part are tried."""


@dataclasses.dataclass
class Segments:
    """A forward pass in parts.

    Attributes:
        alive: What is kept: all that a part hands on to those behind it.
        last: Nodes of the last part, with which the backward pass begins.
    """

    alive: set[ir.Value]
    last: set[ir.Node]


def segments(forward: Forward, trained: Collection[str]) -> Segments | None:
    """As many parts as make the sum of what is kept and of the largest part smallest.

    None if that is one part. Only values that depend on what is trained count: gradients go through
    no others.
    """
    learned = _learned(forward, trained)
    spans = _spans(forward, learned)
    held = _held(spans, len(forward.nodes))
    sizes = [sum(bytes_of(v) for v in n.outputs if v in learned) for n in forward.nodes]
    least, best = sum(sizes), list[int]()
    for count in range(2, TRIES + 2):
        places = _places(held, sizes, sum(sizes) / count)
        kept = sum(span.size for span in spans if span.holds(places))
        needed = kept + max(_parts(sizes, places))
        if needed < least:
            least, best = needed, places
    if not best:
        return None
    alive = {span.value for span in spans if span.holds(best)}
    return Segments(alive, set(forward.nodes[best[-1] + 1 :]))


def _learned(forward: Forward, trained: Collection[str]) -> set[ir.Value]:
    """Values of the forward pass that depend on what is trained."""
    found: set[ir.Value] = {value for value in forward.graph.inputs if value.name in trained}
    for node in forward.nodes:
        if any(value in found for value in reads(node)):
            found.update(node.outputs)
    return found.intersection(forward.made)


class _Span(NamedTuple):
    """A value, its bytes, and the nodes between which it is alive: what makes and reads it last."""

    value: ir.Value
    size: int
    begin: int
    end: int

    def holds(self, places: Sequence[int]) -> bool:
        """Whether it is alive behind one of the nodes at these places, which are in order."""
        later = bisect.bisect_left(places, self.begin)
        return later < len(places) and places[later] < self.end


def _spans(forward: Forward, learned: Collection[ir.Value]) -> list[_Span]:
    """Where values are alive that later nodes of the forward pass read."""
    last = {v: place for place, node in enumerate(forward.nodes) for v in reads(node)}
    read = [value for value in last if value in learned]
    return [_Span(value, bytes_of(value), forward.made[value], last[value]) for value in read]


def _held(spans: Collection[_Span], count: int) -> list[int]:
    """How many bytes are alive behind each of so many nodes."""
    changes = [0] * count
    for span in spans:
        changes[span.begin] += span.size
        changes[span.end] -= span.size
    return list(itertools.accumulate(changes))


def _places(held: Sequence[int], sizes: Sequence[int], size: float) -> list[int]:
    """Places between parts of about so many bytes, where little is held."""
    found, begin, filled = list[int](), 0, 0
    for place, own in enumerate(sizes):
        filled += own
        if filled <= size:
            continue
        near = range((begin + place) // 2, place)
        if near:
            begin = min(near, key=lambda at: (held[at], -at)) + 1
            found.append(begin - 1)
            filled = sum(sizes[begin : place + 1])
    return found


def _parts(sizes: Sequence[int], places: Sequence[int]) -> list[int]:
    """How many bytes are made in each part."""
    ends = [0, *(place + 1 for place in places), len(sizes)]
    return [sum(sizes[a:b]) for a, b in itertools.pairwise(ends)]
