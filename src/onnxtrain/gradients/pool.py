"""Gradients of pooling."""

from __future__ import annotations

import math
import operator

import numpy as np
import onnx_ir as ir

from onnxtrain.gradients.gather import add_at
from onnxtrain.gradients.known import operands, output_of, rank_of
from onnxtrain.gradients.reduction import count_along, nonzero
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import take_over
from onnxtrain.types import MS, DataType


@gradient("MaxPool", until=7)
def max_pool_1(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The first versions cannot tell where the maximum was, torch's own can."""
    return pulled_back(op, node, [dy])


@gradient("MaxPool", since=8)
def max_pool(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy added where the maximum of each window was found; told the shape of x if it varies."""
    (x,) = operands(node)
    if op.opset < 9 and (attribute(node, "storage_order", 0) or maybe_hollow(node)):
        return pulled_back(op, node, [dy])
    indices = output_of(node, 1, "_mask", DataType.INT64, node.outputs[0].shape)
    if op.opset < 9:  # MaxPoolGrad came later than the indices
        return [add_at(op, dy, indices, x)]
    known = x.shape is not None and all(isinstance(dim, int) for dim in x.shape[1:])
    grad = op.MaxPoolGrad(dy, indices, None if known else op.Shape(x), **forwarded(node))
    grad.shape = x.shape
    return [grad]


def maybe_hollow(node: ir.Node) -> bool:
    """Whether a window of a pool may hold padding alone: its index is -1 then, its gradient 0."""
    kernel = attribute(node, "kernel_shape", ())
    pads = attribute(node, "pads", ())
    same = attribute(node, "auto_pad", "NOTSET").startswith("SAME")
    apart = any(dilation > 1 for dilation in attribute(node, "dilations", ()))
    wide = any(map(operator.ge, pads, [*kernel, *kernel]))
    return not kernel or wide or (apart and (same or any(pads)))


@gradient("AveragePool")
def average_pool(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy/n added to the n elements of each window."""
    (x,) = operands(node)
    return [spread(op, node, dy, x)]


def spread(op: Ops, node: ir.Node, dy: ir.Value, x: ir.Value, **changes: int) -> ir.Value:
    """AveragePoolGrad with the window of a pooling node, told the shape of x if it varies."""
    if op.opset < 9:
        return _spread_by_conv(op, node, dy, x, **changes)
    known = x.shape is not None and x.shape.is_static()
    options = {**forwarded(node, "p"), **changes}
    grad = op.AveragePoolGrad(dy, None if known else op.Shape(x), **options)
    grad.shape = x.shape
    return grad


def _spread_by_conv(
    op: Ops, node: ir.Node, dy: ir.Value, x: ir.Value, count_include_pad: int | None = None
) -> ir.Value:
    """The same as a convolution with ones, where there is no AveragePoolGrad that could do it."""
    if count_include_pad is None:
        count_include_pad = attribute(node, "count_include_pad", 0)
    window = forwarded(node, "p", "ceil_mode", "count_include_pad")
    ones = op.const(np.ones([1, 1, *attribute(node, "kernel_shape", ())]), x.dtype)
    rank = len(attribute(node, "kernel_shape", ())) + 2
    data, grad = _planes(op, x, rank), _planes(op, dy, rank)
    if count_include_pad:
        count = op.scalar(math.prod(attribute(node, "kernel_shape", ())), x)
    else:
        count = nonzero(op, op.Conv(op.filled(1, shape_of=data, like=data), ones, **window))
    dx, *_ = op.ConvGrad(op.Div(grad, count), data, ones, **window, _outputs=3, _domain=MS)
    return op.reshape_like(dx, x)


def spread_without_shapes(graph: ir.Graph) -> None:
    """Write gradients of means that are told the shape of x as convolutions, in place.

    The reference's AveragePoolGrad is not told any, and leaves out what it does not know. Windows
    beyond the end stay: no convolution has them.
    """
    for node in list(graph):
        told = node.inputs[1] if len(node.inputs) > 1 else None
        shape = None if told is None else told.producer()
        if node.op_type != "AveragePoolGrad" or told is None or shape is None:
            continue
        if attribute(node, "ceil_mode", 0):
            continue
        (dy, *_), (x, *_) = node.inputs, shape.inputs
        assert dy is not None and x is not None
        op = Ops(graph, f"{node.name}/")
        dx = _spread_by_conv(op, node, dy, x)
        for made in op.nodes:
            made.metadata_props.update(node.metadata_props)
        graph.insert_before(node, op.nodes)
        take_over(node.outputs[0], dx)
        graph.remove(node, safe=True)
        if not told.uses():
            graph.remove(shape, safe=True)


def _planes(op: Ops, x: ir.Value, rank: int) -> ir.Value:
    """Every channel of every sample as a sample with one channel."""
    sizes = op.Gather(op.shape(x), op.ints(range(2, rank)), axis=0)
    return op.Reshape(x, op.Concat(op.ints([-1, 1]), sizes, axis=0))


@gradient("GlobalAveragePool")
def global_average_pool(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy/n for each of the n elements of a channel."""
    (x,) = operands(node)
    rank = rank_of(x)
    if rank is None:
        count = count_along(op, op.rows(x), [2])
    else:
        count = count_along(op, x, range(2, rank))
    share = op.Scale(dy, count, scale_down=1, _domain=MS)
    return [op.expand(share, x)]


@gradient("GlobalMaxPool")
def global_max_pool(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy to the largest element of a channel; elements that tie share it evenly."""
    (x,) = operands(node)
    rank = rank_of(x)
    mask = op.cast(op.equal(x, node.outputs[0]), dy)
    if rank is None:
        tied = op.reshape_like(op.reduce_sum(op.rows(mask), [2], keepdims=True), dy)
    else:
        tied = op.reduce_sum(mask, list(range(2, rank)), keepdims=True)
    return [op.Mul(mask, op.Div(dy, tied))]


@gradient("LpPool", since=2)
def lp_pool(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """sign(x)·|x|^(p-1) times the sum of dy·y^(1-p) over the windows that hold x."""
    (x,) = operands(node)
    p = attribute(node, "p", 2)
    ones = op.LpPool(op.filled(1, shape_of=x, like=x), **{**forwarded(node), "p": 1})
    # an average divides by the size of its window, which the pool of ones has counted
    parts = op.Mul(_outer(op, node.outputs[0], dy, p), ones)
    return [op.Mul(_inner(op, x, p), spread(op, node, parts, x, count_include_pad=0))]


@gradient("GlobalLpPool", since=2)
def global_lp_pool(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """sign(x)·|x|^(p-1)·y^(1-p)·dy."""
    (x,) = operands(node)
    p = attribute(node, "p", 2)
    return [op.Mul(_inner(op, x, p), _outer(op, node.outputs[0], dy, p))]


def _inner(op: Ops, x: ir.Value, p: int) -> ir.Value:
    """sign(x)·|x|^(p-1)."""
    if p == 1:
        return op.sign(x)
    return x if p == 2 else op.Mul(op.sign(x), op.Pow(op.Abs(x), op.scalar(p - 1, x)))


def _outer(op: Ops, y: ir.Value, dy: ir.Value, p: int) -> ir.Value:
    """dy·y^(1-p); where y is 0, x is 0 too."""
    if p == 1:
        return dy
    return op.Div(dy, op.Pow(nonzero(op, y), op.scalar(p - 1, y)))
