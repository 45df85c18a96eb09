"""What patterns ask of nodes and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import onnx_ir as ir

from onnxtrain.graph.bindings import onnx_opset
from onnxtrain.graph.inference.products import integers
from onnxtrain.types import FLOATS, ONNX, DataType

_CLOSE = {DataType.FLOAT16: 1e-3, DataType.BFLOAT16: 1e-2}
"""How far a constant may be off, relative to it, in types that cannot hold it any better."""
_CLOSE_ELSE = 1e-6


MEANS = ("GlobalAveragePool", "ReduceMean")
"""Operators that take means; the first one over all axes behind the second."""


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes a value, if it is one of these operators of ONNX."""
    node = None if value is None else value.producer()
    return node if node is not None and is_op(node, *op_types) else None


def is_op(node: ir.Node, *op_types: str) -> bool:
    """Whether a node is one of these operators of ONNX."""
    return node.domain == ONNX and node.op_type in op_types


def changes_precision(node: ir.Node) -> bool:
    """Whether a node is a Cast from one type of real numbers to another."""
    if not is_op(node, "Cast") or node.inputs[0] is None:
        return False
    return {node.inputs[0].dtype, node.outputs[0].dtype} <= FLOATS


def only_reader(value: ir.Value, *op_types: str) -> ir.Node | None:
    """The one node that reads a value, if it is one of these operators of ONNX.

    None if it is in the body of another node, which may run it many times, or not at all.
    """
    readers = [node for node, _ in value.uses()]
    if len(set(readers)) != 1 or value.is_graph_output() or readers[0].graph is not value.graph:
        return None
    return readers[0] if is_op(readers[0], *op_types) else None


def number(value: ir.Value | None) -> float | None:
    """The number that a constant of one element is."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    return float(value.const_value.numpy().reshape(()))


def rank(value: ir.Value | None) -> int | None:
    """How many dimensions a value has."""
    return None if value is None or value.shape is None else len(value.shape)


def pairs(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """The operands of a commutative operator, in both orders."""
    if len(node.inputs) == 2 and node.inputs[0] is not None and node.inputs[1] is not None:
        a, b = node.inputs
        assert a is not None and b is not None
        yield a, b
        if a is not b:
            yield b, a


def factor_of(node: ir.Node) -> tuple[ir.Value, float] | None:
    """What a node multiplies by a number, and that number; None if it does something else.

    The number must not add dimensions.
    """
    if is_op(node, "Mul"):
        for x, c in pairs(node):
            if (found := number(c)) is not None and number(x) is None and keeps_rank(node, x):
                return x, found
    if is_op(node, "Div") and node.inputs[0] is not None and keeps_rank(node, node.inputs[0]):
        found = number(node.inputs[1])
        if found:
            return node.inputs[0], 1 / found
    return None


def keeps_rank(node: ir.Node, x: ir.Value) -> bool:
    """Whether the result has the rank of an operand."""
    return rank(x) is not None and rank(x) == rank(node.outputs[0])


def close(found: float, wanted: float, dtype: DataType | None) -> bool:
    """Whether a constant is a number, as well as its type can say."""
    allowed = _CLOSE.get(dtype, _CLOSE_ELSE) if dtype is not None else _CLOSE_ELSE
    return abs(found - wanted) <= allowed * abs(wanted)


def is_last_axis(x: ir.Value | None, axis: int) -> bool:
    """Whether an axis is the last one of a value."""
    size = rank(x)
    return axis == -1 or (size is not None and axis == size - 1)


def opset_of(node: ir.Node) -> int:
    """Version of ONNX's own operators that a node is written in."""
    imports = {} if node.graph is None else node.graph.opset_imports
    return onnx_opset(imports)


def reduced_axes(node: ir.Node) -> list[int] | None:
    """Axes of a reduction, as numbers from the end; None if they are not known."""
    size = rank(node.inputs[0])
    if is_op(node, "GlobalAveragePool"):
        return None if size is None else list(range(2 - size, 0))
    given: Sequence[int] | None = node.attributes.get_ints("axes", None)
    if given is None and len(node.inputs) > 1:
        given = integers(node.inputs[1])
    if given is None or size is None:
        return None
    return sorted(axis if axis < 0 else axis - size for axis in given)


class Taken(NamedTuple):
    """What a Slice takes along its one axis: from where to where, in which steps."""

    axis: int
    begin: int
    end: int
    step: int


def taken(node: ir.Node) -> Taken | None:
    """What a Slice forward along one axis of known size takes; None if a node is no such Slice."""
    value = node.inputs[0] if is_op(node, "Slice") else None
    if value is None or value.shape is None or len(node.inputs) < 4:
        return None
    given = [*map(integers, node.inputs[1:4])]
    given.append(integers(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] else [1])
    numbers = [found[0] for found in given if found is not None and len(found) == 1]
    if len(numbers) < len(given):
        return None
    begin, end, axis, step = numbers
    axis %= len(value.shape)
    size = value.shape[axis]
    if not isinstance(size, int) or step < 1:
        return None
    begin, end, _ = slice(begin, end).indices(size)
    return Taken(axis, begin, end, step)


class Part(NamedTuple):
    """What a value is of another one: from where to where along an axis, and the node it is of."""

    whole: ir.Value
    axis: int
    begin: int
    end: int
    node: ir.Node


def part_of(value: ir.Value | None) -> Part | None:
    """What a Slice or Split takes without gaps; None if a value is made otherwise."""
    node = made_by(value, "Slice", "Split")
    whole = None if node is None else node.inputs[0]
    if value is None or node is None or whole is None or whole.shape is None:
        return None
    if node.op_type == "Slice":
        found = taken(node)
        if found is None or found.step != 1:
            return None
        return Part(whole, found.axis, found.begin, found.end, node)
    axis = node.attributes.get_int("axis", 0) % len(whole.shape)
    sizes = [None if part.shape is None else part.shape[axis] for part in node.outputs]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes):
        return None
    place = node.outputs.index(value)
    return Part(whole, axis, sum(known[:place]), sum(known[: place + 1]), node)
