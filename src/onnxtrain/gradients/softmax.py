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
    """Softmax of data + bias: both have its gradient, the bias summed back to its shape."""
    _, bias = operands(node)
    axis = attribute(node, "axis", 1)
    dx = op.SoftmaxGrad(dy, node.outputs[0], axis=axis, _domain=MS)
    return [dx, op.unbroadcast(dx, to=bias)]
