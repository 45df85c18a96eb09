"""Derivatives of trigonometric and hyperbolic functions."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.slope import slope
from onnxtrain.graph.builder import Ops


def _one_plus_square(op: Ops, x: ir.Value) -> ir.Value:
    return op.Add(op.Mul(x, x), op.scalar(1, x))


def _one_minus_square(op: Ops, x: ir.Value) -> ir.Value:
    one = op.scalar(1, x)
    return op.Mul(op.Sub(one, x), op.Add(one, x))


@slope("Tan")
def tan(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """1 + y²."""
    return _one_plus_square(op, node.outputs[0])


@slope("Asin")
def asin(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """1/√(1 - x²)."""
    return op.Reciprocal(op.Sqrt(_one_minus_square(op, x)))


@slope("Acos")
def acos(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """-1/√(1 - x²)."""
    return op.Neg(op.Reciprocal(op.Sqrt(_one_minus_square(op, x))))


@slope("Atan")
def atan(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """1/(1 + x²)."""
    return op.Reciprocal(_one_plus_square(op, x))


@slope("Sinh")
def sinh(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """cosh x."""
    return op.Cosh(x)


@slope("Cosh")
def cosh(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """sinh x."""
    return op.Sinh(x)


@slope("Asinh")
def asinh(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """1/√(x² + 1)."""
    return op.Reciprocal(op.Sqrt(_one_plus_square(op, x)))


@slope("Acosh")
def acosh(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """1/√((x - 1)(x + 1))."""
    one = op.scalar(1, x)
    return op.Reciprocal(op.Sqrt(op.Mul(op.Sub(x, one), op.Add(x, one))))


@slope("Atanh")
def atanh(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """1/(1 - x²)."""
    return op.Reciprocal(_one_minus_square(op, x))
