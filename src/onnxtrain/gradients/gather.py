"""Gradients of operators that pick elements: what was picked gets dy, added up."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.known import axis_in, inputs_of, operands, output_of, rank_of, to_first
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.torch_export.traced import looked_up
from onnxtrain.types import MS, DataType


@gradient("Gather")
@gradient("ShrunkenGather", domain=MS)
def gather(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dx[.., indices[k], ..] += dy[.., k, ..]; a torch Embedding's padding row gets nothing."""
    data, indices = operands(node)
    axis = attribute(node, "axis", 0)
    padding, scaled = looked_up(node)
    if axis == 0 and padding is not None:
        dy = except_row(op, dy, indices, op.const(padding, indices.dtype))
    if axis == 0 and scaled:
        dy = by_frequency(op, dy, indices, data)
    return [op.GatherGrad(op.shape(data), indices, dy, axis=axis, _domain=MS), None]


def except_row(op: Ops, dy: ir.Value, indices: ir.Value, row: ir.Value) -> ir.Value:
    """The gradient of rows that were looked up, zero for one of them."""
    here = op.unsqueeze(op.equal(indices, row), [-1])
    return op.where(here, op.scalar(0, dy), dy)


def by_frequency(op: Ops, dy: ir.Value, indices: ir.Value, table: ir.Value) -> ir.Value:
    """The gradient of rows that were looked up, divided by how often each of them was."""
    rows = op.Gather(op.shape(table), op.ints([0]), axis=0)
    once = op.filled(1, shape_of=indices, like=dy)
    times = op.GatherGrad(rows, indices, once, axis=0, _domain=MS)
    return op.Div(dy, op.unsqueeze(op.Gather(times, indices, axis=0), [-1]))


@gradient("GatherElements")
def gather_elements(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dx[.., indices[m], ..] += dy[m]."""
    data, indices = operands(node)
    axis = attribute(node, "axis", 0)
    return [op.GatherElementsGrad(dy, op.shape(data), indices, axis=axis, _domain=MS), None]


@gradient("GatherND")
def gather_nd(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dx[indices[n], :] += dy[n, :]."""
    data, indices = operands(node)
    batch = attribute(node, "batch_dims", 0)
    whole = op.cast(indices, DataType.INT64)
    return [op.GatherNDGrad(op.shape(data), whole, dy, batch_dims=batch, _domain=MS), None]


@gradient("Slice", until=9)
def slice_by_attributes(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Zeros with dy written to the slice that attributes describe."""
    (data,) = operands(node)
    axes = attribute(node, "axes", None)
    starts, ends = (op.ints(attribute(node, name, ())) for name in ("starts", "ends"))
    where = None if axes is None else op.ints(axes)
    return [op.SliceGrad(dy, op.shape(data), starts, ends, where, _domain=MS)]


@gradient("Slice", since=10)
def slice_(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Zeros with dy written to the slice."""
    data = node.inputs[0]
    assert data is not None
    return to_first(node, op.SliceGrad(dy, op.shape(data), *node.inputs[1:], _domain=MS))


@gradient("TopK")
def top_k(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy back to where the largest values were found."""
    x = node.inputs[0]
    assert x is not None
    indices = output_of(node, 1, "_indices", DataType.INT64, node.outputs[0].shape)
    axis = axis_in(x, attribute(node, "axis", -1))
    grad = op.GatherElementsGrad(dy, op.shape(x), indices, axis=axis, _domain=MS)
    return to_first(node, grad)


@gradient("Compress")
def compress(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy back to the slices (or elements, without an axis) whose condition was true."""
    x, condition = operands(node)
    places = op.Reshape(op.NonZero(condition), op.ints([-1]))
    return [_put_back(op, dy, places, x, attribute(node, "axis", None)), None]


@gradient("Unique")
def unique(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy back to the first occurrence of each value."""
    (x,) = operands(node)
    places = output_of(node, 1, "_indices", DataType.INT64)
    return [_put_back(op, dy, places, x, attribute(node, "axis", None))]


def _put_back(op: Ops, dy: ir.Value, places: ir.Value, x: ir.Value, axis: int | None) -> ir.Value:
    """Zeros like x with dy added at places along an axis, or in the flattened x."""
    if axis is None:
        return add_at(op, dy, places, x)
    return op.GatherGrad(op.shape(x), places, dy, axis=axis, _domain=MS)


def add_at(op: Ops, dy: ir.Value, places: ir.Value, x: ir.Value) -> ir.Value:
    """Zeros like x with each element of dy added at its place in the flattened x."""
    flat, count = op.ints([-1]), op.Reshape(op.Size(x), op.ints([1]))
    elements, where = op.Reshape(dy, flat), op.Reshape(places, flat)
    summed = op.GatherElementsGrad(elements, count, where, axis=0, _domain=MS)
    return op.reshape_like(summed, x)


@gradient("OneHot")
def one_hot(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """values = [off, on]: the sum of dy where the result is off, and where it is on."""
    indices, depth, values = inputs_of(node, 3)
    assert indices is not None and values is not None
    axis = attribute(node, "axis", -1)
    if rank_of(indices) == 0:  # which inference does not let pass
        indices, axis = op.Reshape(indices, op.ints([1])), -1
    bits = op.const([0, 1], values.dtype)
    on = op.OneHot(indices, depth, bits, axis=axis)
    total = op.reduce_sum(dy, None, keepdims=False)
    lit = op.reduce_sum(op.Mul(dy, on), None, keepdims=False)
    both = op.unsqueeze(op.Sub(total, lit), [0]), op.unsqueeze(lit, [0])
    return [None, None, op.Concat(*both, axis=0)]


@gradient("Range")
def range_(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = start + k·delta: Σ dy for the start, Σ k·dy for the step."""
    start, _, delta = operands(node)
    steps = op.cast(op.Range(op.const(0), op.Size(dy), op.const(1)), dy)
    total = op.reduce_sum(dy, None, keepdims=False)
    weighted = op.reduce_sum(op.Mul(dy, steps), None, keepdims=False)
    return [op.reshape_like(total, start), None, op.reshape_like(weighted, delta)]
