"""Which dimensions whole numbers are that a graph computes from shapes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.inference.products import Dim, integers, products_of
from onnxtrain.transforms.fusion.reading import is_op, rank

_ENDLESS = 2**31 - 1
"""Slices up to here go to the end."""


def same_size(a: Dim | None, b: Dim | None) -> bool:
    """Whether two sizes are known and certainly equal."""
    return a is not None and b is not None and same_dim(a, b)


def sizes_of(value: ir.Value | None) -> Sequence[Dim | None] | None:
    """The dimensions that a vector (or a number) of whole numbers holds, as far as known."""
    found = products_of(value)
    return None if found is None else [None if one is None else one.dim for one in found]


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
