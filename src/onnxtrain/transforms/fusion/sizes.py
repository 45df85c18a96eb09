"""Which dimensions whole numbers are that a graph computes from shapes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.transforms.fusion.reading import integers, is_op, rank

Dim = int | ir.SymbolicDim
_HANDED_ON = ("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that leave a single number what it is."""
_ENDLESS = 2**31 - 1
"""Slices up to here go to the end."""


def same_size(a: Dim | None, b: Dim | None) -> bool:
    """Whether two sizes are known and certainly equal."""
    return a is not None and b is not None and same_dim(a, b)


def sizes_of(value: ir.Value | None) -> Sequence[Dim | None] | None:
    """The dimensions that a vector (or a number) of whole numbers holds, as far as known."""
    if value is None:
        return None
    if (known := integers(value)) is not None:
        return known
    node = value.producer()
    if node is None:
        return None
    if is_op(node, "Shape"):
        return _of_shape(node)
    if is_op(node, "Concat"):
        parts = [sizes_of(part) for part in node.inputs]
        joined = [part for part in parts if part is not None]
        return [d for part in joined for d in part] if len(joined) == len(parts) else None
    found = sizes_of(node.inputs[0]) if node.inputs else None
    if found is None:
        return None
    if is_op(node, *_HANDED_ON):
        return found if len(found) == 1 else None
    if is_op(node, "Gather"):
        places = integers(node.inputs[1])
        return None if places is None else [_at(found, place) for place in places]
    if is_op(node, "Slice"):
        return _sliced(node, found)
    return None


def size_of(value: ir.Value | None) -> Dim | None:
    """The dimension that a single whole number is."""
    found = sizes_of(value)
    return found[0] if found is not None and len(found) == 1 else None


def plane_of(value: ir.Value | None) -> tuple[Dim | None, Dim | None]:
    """How many rows and columns a value has, as far as known."""
    node = None if value is None else value.producer()
    found: Sequence[Dim | None] | None = None
    if node is not None and is_op(node, "ConstantOfShape", "Expand"):
        found = sizes_of(node.inputs[-1])
    if found is None and value is not None and value.shape is not None:
        found = list(value.shape)
    if found is None or len(found) < 2:
        return None, None
    return found[-2], found[-1]


def slices_of(node: ir.Node) -> dict[int, tuple[int, Dim | None]] | None:
    """Where a Slice begins and ends, by axis from the end; None for an end that is the last.

    It must begin at known places and leave nothing out in between.
    """
    size, given = rank(node.inputs[0]), [*node.inputs, None, None]
    starts, axes = integers(given[1]), integers(given[3])
    steps = [1] if given[4] is None else integers(given[4])
    if size is None or starts is None or steps is None or set(steps) != {1}:
        return None
    ends = sizes_of(given[2]) or [None] * len(starts)
    found: dict[int, tuple[int, Dim | None]] = {}
    for axis, start, end in zip(axes or range(len(starts)), starts, ends, strict=True):
        known = ir.SymbolicDim(None) if end is None else end
        if isinstance(known, int) and known < 0:
            return None
        last = isinstance(known, int) and known >= _ENDLESS
        found[axis % size - size] = start, None if last else known
    return found


def _of_shape(node: ir.Node) -> Sequence[Dim] | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    dims, numbers = list(x.shape), node.attributes
    return dims[numbers.get_int("start", 0) : numbers.get_int("end", len(dims))]


def _at(found: Sequence[Dim | None], place: int) -> Dim | None:
    return found[place] if -len(found) <= place < len(found) else None


def _sliced(node: ir.Node, found: Sequence[Dim | None]) -> Sequence[Dim | None] | None:
    start, end = (integers(value) for value in node.inputs[1:3])
    steps = integers(node.inputs[4]) if len(node.inputs) > 4 else [1]
    if start is None or end is None or steps != [1] or rank(node.inputs[0]) != 1:
        return None
    return found[start[0] : end[0]]
