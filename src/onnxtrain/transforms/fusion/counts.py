"""Values that count along an axis, as positions do: where they come from, what becomes of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.graph.inference.products import integers
from onnxtrain.transforms.fusion.known import COLUMN, ROW, Count, Known, Number, Triangle
from onnxtrain.transforms.fusion.reading import is_op, number, rank
from onnxtrain.transforms.fusion.sizes import size_of, slices_of


def counting(array: npt.NDArray[Any]) -> Count | None:
    """A constant that counts along its only axis of more than one element."""
    long = [axis for axis, size in enumerate(array.shape) if size > 1]
    if len(long) != 1 or not np.issubdtype(array.dtype, np.integer):
        return None
    first = int(array.flat[0])
    if not np.array_equal(array.ravel(), np.arange(first, first + array.size)):
        return None
    return Count(long[0] - array.ndim, first, array.size)


def ranging(node: ir.Node) -> Known | None:
    """A count from 0 on; the first of it alone is a number, since it may be repeated."""
    start, end, step = node.inputs
    if number(start) != 0 or number(step) != 1:
        return None
    size = size_of(end)
    return Number(0.0) if size == 1 else Count(COLUMN, 0, size)


def compared(op_type: str, parts: list[Known | None]) -> Known | None:
    """Counts moved by a number, or compared."""
    if len(parts) != 2:
        return None
    a, b = parts
    if op_type == "Add" and isinstance(a, Number):
        a, b = b, a
    if op_type in ("Add", "Sub") and isinstance(a, Count) and isinstance(b, Number):
        moved = int(b.value) if op_type == "Add" else -int(b.value)
        return dataclasses.replace(a, offset=a.offset + moved)
    if op_type in ("Sub", "Equal") and isinstance(a, Count) and isinstance(b, Count):
        apart = a.offset - b.offset
        return Number(apart if op_type == "Sub" else apart == 0) if a.axis == b.axis else None
    if op_type in ("Greater", "GreaterOrEqual"):
        a, b, op_type = b, a, {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}[op_type]
    if op_type not in ("Less", "LessOrEqual"):
        return None
    return _below(a, b, int(op_type == "Less"))


def _below(a: Known | None, b: Known | None, less: int) -> Known | None:
    """A comparison a + less <= b of counts."""
    if isinstance(a, Number) and isinstance(b, Count):
        return Number(1.0) if a.value + less <= b.offset else None
    if not isinstance(a, Count) or not isinstance(b, Count):
        return None
    if (a.axis, b.axis) == (COLUMN, ROW):
        return Triangle(b.offset - a.offset - less, 1.0, 0.0, b.size, a.size)
    if (a.axis, b.axis) == (ROW, COLUMN):
        return Triangle(a.offset - b.offset + less - 1, 0.0, 1.0, a.size, b.size)
    return None


def moved_count(node: ir.Node, known: Count) -> Known | None:
    """A count with more axes, or a part of it."""
    if is_op(node, "Unsqueeze"):
        return _lifted(node, known)
    slices = slices_of(node) if is_op(node, "Slice") else None
    if slices is None:
        return None
    start, end = slices.get(known.axis, (0, None))
    if start < 0:
        return None
    if end == start + 1:
        return Number(float(known.offset + start))
    size = known.size if start == 0 and end is None else end if start == 0 else None
    return dataclasses.replace(known, offset=known.offset + start, size=size)


def joined(node: ir.Node, parts: list[Known | None]) -> Known | None:
    """A count with the number before its first in front, or the same number twice."""
    size, first = rank(node.outputs[0]), node.inputs[0]
    if len(parts) != 2 or size is None:
        return None
    a, b = parts
    if isinstance(a, Number) and a == b:
        return a
    axis = node.attributes["axis"].as_int() % size - size
    if not isinstance(a, Number) or not isinstance(b, Count) or b.axis != axis:
        return None
    follows = _is_single(first, axis) and a.value + 1 == b.offset
    return Count(axis, int(a.value), None) if follows else None


def _is_single(value: ir.Value | None, axis: int) -> bool:
    """Whether a value has one element along an axis."""
    if value is None or value.shape is None or len(value.shape) < -axis:
        return False
    node = value.producer()
    if list(value.shape)[axis] == 1 or node is None:
        return list(value.shape)[axis] == 1
    if is_op(node, "Add", "Sub"):
        return all(_is_single(part, axis) or number(part) is not None for part in node.inputs)
    start, end = (slices_of(node) or {}).get(axis, (0, None)) if is_op(node, "Slice") else (0, None)
    return isinstance(end, int) and end == start + 1


def _lifted(node: ir.Node, known: Count) -> Count | None:
    """A count along the axis that it has among new ones."""
    size, axes = rank(node.outputs[0]), axes_of(node)
    if size is None or axes is None:
        return None
    added = {axis % size for axis in axes}
    old = [axis for axis in range(size) if axis not in added]
    return dataclasses.replace(known, axis=old[known.axis] - size)


def axes_of(node: ir.Node) -> list[int] | None:
    """Axes that Unsqueeze adds or Squeeze takes away, None if they are not known."""
    given = node.attributes.get_ints("axes", None)
    if given is not None:
        return list(given)
    return integers(node.inputs[1]) if len(node.inputs) > 1 else None
