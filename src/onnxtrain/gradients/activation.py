"""Gradients of activation functions."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.known import operands, real
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.gradients.slope import slope
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, OWN

_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875


@gradient("Relu")
def relu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy where y > 0, else 0."""
    return [op.ReluGrad(dy, node.outputs[0], _domain=MS)]


@gradient("LeakyRelu")
def leaky_relu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy where x > 0, else α·dy; the sign of y tells unless α is negative."""
    (x,) = operands(node)
    alpha = real(node, "alpha", 0.01)
    if alpha >= 0:
        return [op.LeakyReluGrad(dy, node.outputs[0], alpha=alpha, _domain=MS)]
    return [op.Mul(dy, _positive(op, x, op.scalar(1, x), op.scalar(alpha, x)))]


def _positive(op: Ops, x: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
    """One value where x > 0, another elsewhere."""
    return op.where(op.Greater(x, op.scalar(0, x)), yes, no)


@gradient("PRelu")
def prelu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = x where x > 0, else slope·x: d = dy or slope·dy, and x·dy for the slope."""
    x, steepness = operands(node)
    one, zero = op.scalar(1, x), op.scalar(0, x)
    dx = op.Mul(dy, _positive(op, x, one, steepness))
    return [dx, op.unbroadcast(op.Mul(dy, _positive(op, x, zero, x)), to=steepness)]


@gradient("Sigmoid")
def sigmoid(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y(1 - y)·dy."""
    return [op.SigmoidGrad(dy, node.outputs[0], _domain=MS)]


@gradient("Tanh")
def tanh(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """(1 - y²)·dy."""
    return [op.TanhGrad(dy, node.outputs[0], _domain=MS)]


@gradient("Gelu")
def gelu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The derivative of x·Φ(x), exact or of its approximation by tanh."""
    if attribute(node, "approximate", "none") == "tanh":
        return [op.FastGeluGrad(dy, node.inputs[0], _domain=MS)]
    return [op.GeluGrad(dy, node.inputs[0], _domain=MS)]


@gradient("Gelu", domain=MS)
def ms_gelu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The derivative of x·Φ(x)."""
    return [op.GeluGrad(dy, node.inputs[0], _domain=MS)]


@gradient("Gated", domain=OWN)
def gated(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Both gradients in one operator."""
    return [*op.GatedGrad(dy, *operands(node), **forwarded(node), _outputs=2, _domain=OWN)]


@gradient("GatedHalves", domain=OWN)
def gated_halves(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The gradients of both halves, where the halves are."""
    return [op.GatedHalvesGrad(dy, *operands(node), **forwarded(node), _domain=OWN)]


@gradient("QuickGelu", domain=MS)
def quick_gelu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The derivative of x·σ(αx)."""
    alpha = real(node, "alpha", 1.702)
    return [op.QuickGeluGrad(dy, node.inputs[0], alpha=alpha, _domain=MS)]


@gradient("FastGelu", domain=MS)
def fast_gelu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The derivative of the approximation by tanh at x + bias."""
    if len(node.inputs) == 1 or node.inputs[1] is None:
        return [op.FastGeluGrad(dy, node.inputs[0], _domain=MS), None][: len(node.inputs)]
    x, bias = operands(node)
    dx = op.BiasFastGeluGrad_dX(dy, x, bias, _domain=MS)
    return [dx, op.unbroadcast(dx, to=bias)]


@gradient("BiasGelu", domain=MS)
def bias_gelu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The derivative of x·Φ(x) at x + bias."""
    x, bias = operands(node)
    dx = op.BiasGeluGrad_dX(dy, x, bias, _domain=MS)
    return [dx, op.unbroadcast(dx, to=bias)]


def _decaying(op: Ops, x: ir.Value, factor: float, rate: float = 1.0) -> ir.Value:
    """factor·exp(rate·x), of 0 instead of positive x so that it never overflows."""
    negative = _positive(op, x, op.scalar(0, x), x)
    exponent = negative if rate == 1 else op.Mul(negative, op.scalar(rate, x))
    return op.Mul(op.Exp(exponent), op.scalar(factor, x))


@slope("Elu")
def elu(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """1 where x > 0, else α·exp(x)."""
    return _positive(op, x, op.scalar(1, x), _decaying(op, x, real(node, "alpha", 1.0)))


@slope("Selu")
def selu(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """γ where x > 0, else γ·α·exp(x)."""
    alpha = real(node, "alpha", _SELU_ALPHA)
    gamma = real(node, "gamma", _SELU_GAMMA)
    return _positive(op, x, op.scalar(gamma, x), _decaying(op, x, gamma * alpha))


@slope("Celu")
def celu(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """1 where x > 0, else exp(x/α)."""
    rate = 1 / real(node, "alpha", 1.0)
    return _positive(op, x, op.scalar(1, x), _decaying(op, x, 1.0, rate))


@slope("Softplus")
def softplus(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """σ(x)."""
    return op.Sigmoid(x)


@slope("Softsign")
def softsign(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """1/(1 + |x|)²."""
    root = op.Reciprocal(op.Add(op.scalar(1, x), op.Abs(x)))
    return op.Mul(root, root)


@slope("HardSigmoid")
def hard_sigmoid(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """α where 0 < αx + β < 1, else 0."""
    zero, one = op.scalar(0, x), op.scalar(1, x)
    alpha = op.scalar(real(node, "alpha", 0.2), x)
    line = op.Add(op.Mul(alpha, x), op.scalar(real(node, "beta", 0.5), x))
    inside = op.And(op.Greater(line, zero), op.Less(line, one))
    return op.where(inside, alpha, zero)


@slope("HardSwish")
def hard_swish(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """0 where x < -3, 1 where x > 3, x/3 + 1/2 in between."""
    zero, one, three = op.scalar(0, x), op.scalar(1, x), op.scalar(3, x)
    middle = op.Add(op.Div(x, three), op.scalar(0.5, x))
    right = op.where(op.Greater(x, three), one, middle)
    return op.where(op.Less(x, op.Neg(three)), zero, right)


@slope("Mish")
def mish(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """t + x(1 - t²)·σ(x), with t = tanh(softplus(x))."""
    t = op.Tanh(op.Softplus(x))
    rest = op.Sub(op.scalar(1, x), op.Mul(t, t))
    return op.Add(t, op.Mul(x, op.Mul(rest, op.Sigmoid(x))))


@slope("Swish")
def swish(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """s + αx·s(1 - s), with s = σ(αx)."""
    scaled = op.Mul(x, op.scalar(real(node, "alpha", 1.0), x))
    s = op.Sigmoid(scaled)
    return op.Add(s, op.Mul(scaled, op.Mul(s, op.Sub(op.scalar(1, x), s))))


@slope("ThresholdedRelu")
def thresholded_relu(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """1 where x > α, else 0."""
    return op.cast(op.Greater(x, op.scalar(real(node, "alpha", 1.0), x)), x)


@slope("Shrink")
def shrink(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """1 where |x| > λ, else 0."""
    return op.cast(op.Greater(op.Abs(x), op.scalar(real(node, "lambd", 0.5), x)), x)


@gradient("SwiGLU")
def swiglu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = a·σ(αa)·b: each factor's derivative times the other."""
    a, b = operands(node)
    gate = op.Mul(a, op.Sigmoid(op.Mul(a, op.scalar(real(node, "alpha", 1.0), a))))
    return [op.Mul(op.Mul(dy, b), swish(op, node, a)), op.Mul(dy, gate)]
