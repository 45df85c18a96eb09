"""Gradients of Concat and Split."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import axis_in, dim_of, operands, output_of, to_first
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType


@gradient("Concat")
def concat(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy cut at the borders of the inputs."""
    xs = operands(node)
    axis = axis_in(dy, attribute(node, "axis", 1))
    if len(xs) == 1:
        return [dy]
    known = [dim_of(x, axis) for x in xs]
    sizes = [size for size in known if size is not None]
    if len(sizes) == len(xs) and op.opset < 13:
        return list(op.Split(dy, axis=axis, split=sizes, _outputs=len(xs)))
    if len(sizes) == len(xs):
        return list(op.Split(dy, op.ints(sizes), axis=axis, _outputs=len(xs)))
    lengths = op.Concat(*(_length(op, x, axis) for x in xs), axis=0)
    if op.opset < 13:
        return list(op.SplitTraining(dy, lengths, axis=axis, _outputs=len(xs), _domain=MS))
    return list(op.Split(dy, lengths, axis=axis, _outputs=len(xs)))


def _length(op: Ops, x: ir.Value, axis: int) -> ir.Value:
    return op.Gather(op.shape(x), op.ints([axis]), axis=0)


@gradient("ConcatTraining", domain=MS)
def concat_training(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy cut at the borders of the inputs, which the node itself reports."""
    count = len(node.inputs)
    lengths = output_of(node, 1, "_lengths", DataType.INT64, ir.Shape([count]))
    axis = attribute(node, "axis", 0)
    if count == 1:
        return [dy]
    return list(op.SplitTraining(dy, lengths, axis=axis, _outputs=count, _domain=MS))


@gradient("Split", all_outputs=True)
def split(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """The pieces put together again, zeros for those that nobody used."""
    return to_first(node, _joined(op, node, dys))


@gradient("SplitTraining", domain=MS, all_outputs=True)
def split_training(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """The pieces put together again, zeros for those that nobody used."""
    return to_first(node, _joined(op, node, dys))


def _joined(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> ir.Value:
    x = node.inputs[0]
    assert x is not None and x.dtype is not None
    axis = axis_in(x, attribute(node, "axis", 0))
    sizes = [_size(value, axis) for value in node.outputs]
    pieces = []
    for index, dy in enumerate(dys):
        if dy is None:
            equal = [d for d, size in zip(dys, sizes, strict=True) if size == sizes[index]]
            like = next((d for d in equal if d is not None and sizes[index] is not None), None)
            like = like or output_of(node, index, f"_part{index}", x.dtype)
            dy = op.filled(0, shape_of=like, like=x)
        pieces.append(dy)
    return pieces[0] if len(pieces) == 1 else op.Concat(*pieces, axis=axis)


def _size(value: ir.Value, axis: int) -> int | None:
    """How much a piece has of what is split; other axes are those of all pieces."""
    size = None if value.shape is None else value.shape[axis]
    return size if isinstance(size, int) else None
