"""What is known of a mask before anything runs: whether it closes nothing, or what lies ahead.

Values are read as functions of the row i and the column j. A number is the same everywhere; a count
is the index along an axis; a triangle is one number where j - i <= k and another elsewhere. That is
enough for masks that exporters compute from Range, comparisons and Where, whatever the sizes are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtrain.transforms.fusion.counts import (
    axes_of,
    compared,
    counting,
    joined,
    moved_count,
    ranging,
)
from onnxtrain.transforms.fusion.evaluated import evaluated
from onnxtrain.transforms.fusion.known import COLUMN, ROW, Count, Known, Number, Triangle
from onnxtrain.transforms.fusion.reading import is_op, number, rank
from onnxtrain.transforms.fusion.sizes import plane_of, slices_of
from onnxtrain.types import FLOATS, DataType

_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "And": np.logical_and,
    "BitwiseAnd": lambda a, b: int(a) & int(b),
    "Div": np.divide,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Sub": np.subtract,
    "Where": np.where,
}
_ANYWHERE = frozenset(
    {"Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice"}
    | {"Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""Operators that take elements from their first input: of a number they give that number."""
_READ = (*_ELEMENTWISE, *_ANYWHERE, "Cast", "CastLike", "Concat", "CumSum", "Trilu")
"""Operators whose inputs are looked at."""


class Masks:
    """Reads values of one graph, each once."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, Known | None] = {}
        self._computed: set[ir.Value] = set()

    def read(self, value: ir.Value | None) -> Known | None:
        """What is known of a value, None if it depends on data."""
        if value is None:
            return None
        if value not in self._known:
            self._known[value] = None
            self._known[value] = self._found(value)
        return self._known[value]

    def settled(self, value: ir.Value) -> Known | None:
        """What is known of a value, which is computed if it cannot be read but never changes."""
        known = self.read(value)
        if known is None and value.const_value is None and value not in self._computed:
            self._computed.add(value)
            tensor = evaluated(value)
            known = self._known[value] = None if tensor is None else _constant(tensor)
        return known

    def _found(self, value: ir.Value) -> Known | None:
        if value.const_value is not None:
            return _constant(value.const_value)
        node = value.producer()
        if node is None or node.domain != "":
            return None
        if is_op(node, "ConstantOfShape"):
            return _filling(node)
        if is_op(node, "Range"):
            return ranging(node)
        if not is_op(node, *_READ):
            return None
        first = self.read(node.inputs[0])
        if isinstance(first, Number) and node.op_type in _ANYWHERE:
            return first
        if is_op(node, "Cast", "CastLike"):
            return _cast(first, value.dtype)
        if is_op(node, "Trilu"):
            return _trilu(node, first)
        if is_op(node, *_ELEMENTWISE):
            return _elementwise(node, [self.read(part) for part in node.inputs])
        if is_op(node, "Concat"):
            return joined(node, [self.read(part) for part in node.inputs])
        return _moved(node, first)


def _constant(tensor: ir.TensorProtocol) -> Known | None:
    """A constant that is one number, a count or a triangle."""
    if tensor.size == 0 or tensor.dtype == DataType.STRING:
        return None
    array = np.asarray(tensor.numpy())
    if np.all(array == array.flat[0]):
        return Number(float(array.flat[0]))
    if (count := counting(array)) is not None:
        return count
    if array.ndim < 2 or array.shape[-1] < 2:
        return None
    planes = array.reshape(-1, *array.shape[-2:])
    plane = planes[0]
    if not np.all(planes == plane):
        return None
    inside, outside = plane[0, 0], plane[0, -1]
    if not np.array_equal(plane, np.where(np.tri(*plane.shape, dtype=np.bool_), inside, outside)):
        return None
    return Triangle(0, float(inside), float(outside), *plane.shape)


def _filling(node: ir.Node) -> Number:
    """What ConstantOfShape is filled with."""
    given = node.attributes.get("value")
    return Number(0.0 if given is None else float(given.as_tensor().numpy().reshape(())))


def _cast(known: Known | None, dtype: DataType | None) -> Known | None:
    """What is left of numbers in another type; what they are rounded to is not read."""
    if known is None or dtype in FLOATS:
        return known
    if isinstance(known, Count):
        return None if dtype == DataType.BOOL else known
    there = [known.value] if isinstance(known, Number) else [known.inside, known.outside]
    if dtype == DataType.BOOL:
        there = [float(value != 0) for value in there]
    elif not all(value.is_integer() for value in there):
        return None
    return Number(there[0]) if isinstance(known, Number) else known.replaced(*there)


def _trilu(node: ir.Node, known: Known | None) -> Known | None:
    """The triangle that is kept, 0 elsewhere."""
    shift = 0.0 if len(node.inputs) < 2 else number(node.inputs[1])
    if not isinstance(known, Number) or shift is None:
        return None
    plane = plane_of(node.inputs[0])
    if node.attributes.get_int("upper", 1):
        return Triangle(int(shift) - 1, 0.0, known.value, *plane)
    return Triangle(int(shift), known.value, 0.0, *plane)


def _elementwise(node: ir.Node, parts: list[Known | None]) -> Known | None:
    """An operator on what its inputs are at each place; quotients of whole numbers are not read."""
    if node.op_type == "Div" and node.outputs[0].dtype not in FLOATS:
        return None
    if any(isinstance(part, Count) for part in parts):
        return compared(node.op_type, parts)
    function, known = _ELEMENTWISE[node.op_type], [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    places = {part.replaced(0.0, 0.0) for part in known if isinstance(part, Triangle)}
    if len(places) > 1:
        return None
    with np.errstate(all="ignore"):
        inside, outside = (
            float(function(*(_at(part, side) for part in known))) for side in (True, False)
        )
    return places.pop().replaced(inside, outside) if places else Number(inside)


def _at(part: Known, inside: bool) -> float:
    assert not isinstance(part, Count)
    if isinstance(part, Number):
        return part.value
    return part.inside if inside else part.outside


def _moved(node: ir.Node, known: Known | None) -> Known | None:
    """Counts and triangles in another shape."""
    if is_op(node, "CumSum"):
        return known if known == Number(0.0) else None
    if is_op(node, "Expand", "Identity"):
        return known
    if isinstance(known, Count):
        return moved_count(node, known)
    if isinstance(known, Triangle) and is_op(node, "Unsqueeze"):
        size, axes = rank(node.outputs[0]), axes_of(node)
        inner = size is None or axes is None or any(axis % size >= size - 2 for axis in axes)
        return None if inner else known
    if isinstance(known, Triangle) and is_op(node, "Slice"):
        return _cut(node, known)
    return None


def _cut(node: ir.Node, known: Triangle) -> Triangle | None:
    """The first rows and columns of a triangle."""
    slices = slices_of(node)
    if slices is None or any(start != 0 for start, _ in slices.values()):
        return None
    rows, columns = (slices.get(axis, (0, None))[1] for axis in (ROW, COLUMN))
    return dataclasses.replace(
        known,
        rows=known.rows if rows is None else rows,
        columns=known.columns if columns is None else columns,
    )
