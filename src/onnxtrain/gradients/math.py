"""Gradients of elementwise arithmetic."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxtrain.gradients.known import number_of, operands
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.gradients.squares import is_sum_of_squares
from onnxtrain.graph.builder import Ops
from onnxtrain.types import FLOATS


@gradient("Add")
def add(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(a + b) = dy, dy; each summed back to the shape it was broadcast from."""
    a, b = operands(node)
    return [op.unbroadcast(dy, to=a), op.unbroadcast(dy, to=b)]


@gradient("Sub")
def sub(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(a - b) = dy, -dy."""
    a, b = operands(node)
    return [op.unbroadcast(dy, to=a), op.Neg(op.unbroadcast(dy, to=b))]


@gradient("Mul")
def mul(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(ab) = b·dy, a·dy."""
    a, b = operands(node)
    return [op.unbroadcast(op.Mul(dy, b), to=a), op.unbroadcast(op.Mul(dy, a), to=b)]


@gradient("Div")
def div(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(a / b) = dy/b, -dy·y/b."""
    a, b = operands(node)
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
    (x,) = operands(node)
    return [op.Mul(dy, op.sign(x))]


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
    """d sqrt(x) = dy/(2y); 0 for a length of 0, which has no direction."""
    y = node.outputs[0]
    slope = op.Div(op.scalar(0.5, y), y)
    if is_sum_of_squares(node.inputs[0]):
        zero = op.scalar(0, y)
        slope = op.where(op.equal(y, zero), zero, slope)
    return [op.Mul(dy, slope)]


@gradient("Reciprocal")
def reciprocal(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(1/x) = -y²·dy."""
    y = node.outputs[0]
    return [op.Mul(dy, op.Neg(op.Mul(y, y)))]


@gradient("Pow")
def power(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(a^b) = b·a^(b-1)·dy (0 where b is 0), and a^b·log(a)·dy where a > 0 (0 elsewhere)."""
    a, b = operands(node)
    da = op.unbroadcast(op.Mul(dy, _power_slope(op, a, b)), to=a)
    if b.dtype not in FLOATS:
        return [da, None]
    zero, one = op.scalar(0, a), op.scalar(1, a)
    positive = op.Greater(a, zero)
    log_a = op.Log(op.where(positive, a, one))
    db = op.where(positive, op.Mul(node.outputs[0], log_a), zero)
    return [da, op.unbroadcast(op.cast(op.Mul(dy, db), b), to=b)]


def _power_slope(op: Ops, a: ir.Value, b: ir.Value) -> ir.Value:
    """b·a^(b-1), without a 0·∞ at a = b = 0."""
    known = number_of(b)
    if known == 2:
        return op.Mul(a, op.scalar(2, a))
    one = op.scalar(1, a)
    exponent = op.cast(b, a)
    if known is not None and known != 0:
        return op.Mul(exponent, op.Pow(a, op.scalar(known - 1, a)))
    zero = op.scalar(0, a)
    constant = op.equal(exponent, zero)
    lower = op.where(constant, one, op.Sub(exponent, one))
    return op.Mul(exponent, op.Pow(a, lower))


@gradient("Erf")
def erf(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d erf(x) = 2/√π·exp(-x²)·dy."""
    (x,) = operands(node)
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
    return [op.unbroadcast(dy, to=x) for x in operands(node)]


@gradient("Mean")
def mean(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(Σx / n) = dy/n for each."""
    share = op.Mul(dy, op.scalar(1 / len(node.inputs), dy))
    return [op.unbroadcast(share, to=x) for x in operands(node)]


@gradient("Mod")
def mod(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """d(a - b·q) = dy, -q·dy, with the whole number q = (a - y)/b."""
    a, b = operands(node)
    quotient = op.Div(op.Sub(a, node.outputs[0]), b)
    whole = op.Floor(op.Add(quotient, op.scalar(0.5, b)))
    return [op.unbroadcast(dy, to=a), op.unbroadcast(op.Neg(op.Mul(dy, whole)), to=b)]


@gradient("CumProd")
def cum_prod(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Σ dy·y/x over the products that hold x, or Σ dy·y' at the first three zeros.

    y' are the products without the zero in question. Those behind three zeros have no first,
    second or third derivative, so that what stands there needs no such care.
    """
    x, axis = operands(node)
    options = {"exclusive": attribute(node, "exclusive", 0)}
    reverse = attribute(node, "reverse", 0)
    is_zero = op.Equal(x, op.scalar(0, x))
    one = op.scalar(1, x)

    def summed(y: ir.Value) -> ir.Value:
        total: ir.Value = op.CumSum(op.Mul(dy, y), axis, reverse=1 - reverse, **options)
        return total

    seen = op.CumSum(op.cast(is_zero, x), axis, reverse=reverse)
    grad = op.Div(summed(node.outputs[0]), op.Where(is_zero, one, x))
    for count in (1, 2, 3):
        at = op.And(is_zero, op.Equal(seen, op.scalar(count, x)))
        without = op.CumProd(op.Where(at, one, x), axis, reverse=reverse, **options)
        grad = op.Where(at, summed(without), grad)
    return [grad, None]


@gradient("CumSum")
def cum_sum(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The sum runs the other way."""
    reverse = 1 - attribute(node, "reverse", 0)
    exclusive = attribute(node, "exclusive", 0)
    return [op.CumSum(dy, node.inputs[1], exclusive=exclusive, reverse=reverse), None]
