"""Where a forward pass is cut into parts of which each can be computed again from its beginning.

A cut takes some place in the order of the nodes and keeps what is alive there: of a model of layers
with residual connections that is one value, between two of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

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
    alive = _alive(forward, learned)
    held = [sum(map(bytes_of, values)) for values in alive]
    sizes = [sum(bytes_of(v) for v in n.outputs if v in learned) for n in forward.nodes]
    least, best = sum(sizes), list[int]()
    for count in range(2, TRIES + 2):
        places = _places(held, sizes, sum(sizes) / count)
        kept = set[ir.Value]().union(*(alive[place] for place in places))
        needed = sum(map(bytes_of, kept)) + max(_parts(sizes, places))
        if needed < least:
            least, best = needed, places
    if not best:
        return None
    kept = set[ir.Value]().union(*(alive[place] for place in best))
    return Segments(kept, set(forward.nodes[best[-1] + 1 :]))


def _learned(forward: Forward, trained: Collection[str]) -> set[ir.Value]:
    """Values of the forward pass that depend on what is trained."""
    found: set[ir.Value] = {value for value in forward.graph.inputs if value.name in trained}
    for node in forward.nodes:
        if any(value in found for value in reads(node)):
            found.update(node.outputs)
    return found.intersection(forward.made)


def _alive(forward: Forward, learned: Collection[ir.Value]) -> list[frozenset[ir.Value]]:
    """What later nodes of the forward pass read, behind each of its nodes."""
    found, alive = list[frozenset[ir.Value]](), frozenset[ir.Value]()
    for node in reversed(forward.nodes):
        found.append(alive)
        alive = alive.difference(node.outputs).union(v for v in reads(node) if v in learned)
    return found[::-1]


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
