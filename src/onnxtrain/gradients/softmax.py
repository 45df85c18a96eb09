"""Gradients of softmax and its logarithm."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.known import operands
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS


@gradient("Softmax", since=13)
def softmax(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y(dy - Σ dy·y) along the axis."""
    axis = attribute(node, "axis", -1)
    return [op.SoftmaxGrad_13(dy, node.outputs[0], axis=axis, _domain=MS)]


@gradient("Softmax", until=12)
def softmax_1(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The same with everything from the axis on taken for one row."""
    axis = attribute(node, "axis", 1)
    return [op.SoftmaxGrad(dy, node.outputs[0], axis=axis, _domain=MS)]


@gradient("LogSoftmax", since=13)
def log_softmax(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy - exp(y)·Σ dy along the axis."""
    axis = attribute(node, "axis", -1)
    return [op.LogSoftmaxGrad_13(dy, node.outputs[0], axis=axis, _domain=MS)]


@gradient("LogSoftmax", until=12)
def log_softmax_1(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The same with everything from the axis on taken for one row."""
    axis = attribute(node, "axis", 1)
    return [op.LogSoftmaxGrad(dy, node.outputs[0], axis=axis, _domain=MS)]


@gradient("BiasSoftmax", domain=MS)
def bias_softmax(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Softmax of data + bias: both have its gradient, that of the bias summed over its copies."""
    dx = op.SoftmaxGrad(dy, node.outputs[0], axis=attribute(node, "axis", 1), _domain=MS)
    return [dx, bias_rows(op, node, dx)]


def bias_rows(op: Ops, node: ir.Node, dx: ir.Value) -> ir.Value:
    """The gradient of a bias whose rows were each added to many rows of the data.

    Rows are what lies behind the axis. An inner broadcast repeats each row of the bias before the
    next one comes, an outer one repeats the bias as a whole.
    """
    _, bias, *_ = operands(node)
    one, elements = op.ints([1]), op.Reshape(op.Size(bias), op.ints([1]))
    if not attribute(node, "is_inner_broadcast", 0):
        copies = op.Reshape(dx, op.Concat(op.ints([-1]), elements, axis=0))
        return op.reshape_like(op.reduce_sum(copies, [0], keepdims=False), bias)
    behind = op.slice(op.shape(dx), attribute(node, "axis", 1))
    width = op.Reshape(op.ReduceProd(behind, keepdims=0), one)
    copies = op.Reshape(dx, op.Concat(op.Div(elements, width), op.ints([-1]), width, axis=0))
    return op.reshape_like(op.reduce_sum(copies, [1], keepdims=False), bias)
