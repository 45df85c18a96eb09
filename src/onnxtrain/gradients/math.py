"""Gradients of elementwise arithmetic."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxtrain.gradients.rules import Grad, gradient
from onnxtrain.graph.builder import Ops


@gradient("Add")
def add(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(a + b) = dy, dy; each summed back to the shape it was broadcast from."""
    a, b = node.inputs
    return [op.unbroadcast(dy, to=a), op.unbroadcast(dy, to=b)]


@gradient("Sub")
def sub(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(a - b) = dy, -dy."""
    a, b = node.inputs
    return [op.unbroadcast(dy, to=a), op.Neg(op.unbroadcast(dy, to=b))]


@gradient("Mul")
def mul(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(ab) = b·dy, a·dy."""
    a, b = node.inputs
    return [op.unbroadcast(op.Mul(dy, b), to=a), op.unbroadcast(op.Mul(dy, a), to=b)]


@gradient("Div")
def div(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(a / b) = dy/b, -dy·y/b."""
    a, b = node.inputs
    y = node.outputs[0]
    by_b = op.Div(dy, b)
    return [op.unbroadcast(by_b, to=a), op.unbroadcast(op.Neg(op.Mul(by_b, y)), to=b)]


@gradient("Neg")
def neg(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(-x) = -dy."""
    return [op.Neg(dy)]


@gradient("Abs")
def absolute(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d|x| = sign(x)·dy, 0 at 0."""
    return [op.Mul(dy, op.Sign(node.inputs[0]))]


@gradient("Exp")
def exp(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d exp(x) = y·dy."""
    return [op.Mul(dy, node.outputs[0])]


@gradient("Log")
def log(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d log(x) = dy/x."""
    return [op.Div(dy, node.inputs[0])]


@gradient("Sqrt")
def sqrt(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d sqrt(x) = dy/(2y)."""
    y = node.outputs[0]
    return [op.Mul(dy, op.Div(op.scalar(0.5, y), y))]


@gradient("Reciprocal")
def reciprocal(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(1/x) = -y²·dy."""
    y = node.outputs[0]
    return [op.Mul(dy, op.Neg(op.Mul(y, y)))]


@gradient("Pow")
def power(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(a^b) = b·a^(b-1)·dy, and a^b·log(a)·dy where a > 0."""
    a, b = node.inputs
    y = node.outputs[0]
    exponent = b if b.dtype == a.dtype else op.Cast(b, to=a.dtype)
    slope = op.Mul(exponent, op.Pow(a, op.Sub(exponent, op.scalar(1, a))))
    grads: list[Grad] = [op.unbroadcast(op.Mul(dy, slope), to=a), None]
    if b.dtype == a.dtype:
        zero, one = op.scalar(0, a), op.scalar(1, a)
        positive = op.Greater(a, zero)
        log_a = op.Where(positive, op.Log(op.Where(positive, a, one)), zero)
        grads[1] = op.unbroadcast(op.Mul(dy, op.Mul(y, log_a)), to=b)
    return grads


@gradient("Erf")
def erf(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d erf(x) = 2/√π·exp(-x²)·dy."""
    x = node.inputs[0]
    bell = op.Exp(op.Neg(op.Mul(x, x)))
    return [op.Mul(dy, op.Mul(op.scalar(2 / math.sqrt(math.pi), x), bell))]


@gradient("Sin")
def sin(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d sin(x) = cos(x)·dy."""
    return [op.Mul(dy, op.Cos(node.inputs[0]))]


@gradient("Cos")
def cos(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d cos(x) = -sin(x)·dy."""
    return [op.Neg(op.Mul(dy, op.Sin(node.inputs[0])))]


@gradient("Sum")
def sum_(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d Σx = dy for each."""
    return [op.unbroadcast(dy, to=x) for x in node.inputs]
