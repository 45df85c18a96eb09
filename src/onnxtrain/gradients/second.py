"""Gradients of gradient operators, for derivatives of second and higher order.

Statistics that a gradient operator takes besides the data they were computed from (means, inverse
deviations) are computed again, so that they need no gradient of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxtrain.gradients.chain import through
from onnxtrain.gradients.known import inputs_of, operands, real, to_first
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, OWN

Curve = Callable[[Ops, ir.Node, ir.Value], ir.Value]
Pair = tuple[ir.Value, ir.Value]


@gradient("ReluGrad", "LeakyReluGrad", domain=MS)
def rectifier_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """Linear in dY, constant in Y."""
    again = op.__getattr__(node.op_type)
    return [again(g, node.inputs[1], **forwarded(node), _domain=MS), None]


@gradient("SigmoidGrad", domain=MS)
def sigmoid_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """dY·Y(1 - Y): g·Y(1 - Y), g·dY·(1 - 2Y)."""
    dy, y = operands(node)
    bend = op.Sub(op.scalar(1, y), op.Mul(y, op.scalar(2, y)))
    return [op.SigmoidGrad(g, y, _domain=MS), op.Mul(op.Mul(g, dy), bend)]


@gradient("TanhGrad", domain=MS)
def tanh_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """dY·(1 - Y²): g·(1 - Y²), -2·g·dY·Y."""
    dy, y = operands(node)
    return [op.TanhGrad(g, y, _domain=MS), op.Mul(op.Mul(g, dy), op.Mul(y, op.scalar(-2, y)))]


def _gelu_curve(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """(x·Φ(x))'' = φ(x)·(2 - x²)."""
    square = op.Mul(x, x)
    density = op.Exp(op.Mul(square, op.scalar(-0.5, x)))
    scaled = op.Mul(density, op.scalar(1 / math.sqrt(2 * math.pi), x))
    return op.Mul(scaled, op.Sub(op.scalar(2, x), square))


def _fast_gelu_curve(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """s·u' + x/2·s·(u'' - 2t·u'²), with t = tanh u, s = 1 - t², u = c(x + 0.044715x³)."""
    c, a = math.sqrt(2 / math.pi), 0.044715
    square = op.Mul(x, x)
    u1 = op.Add(op.Mul(square, op.scalar(3 * a * c, x)), op.scalar(c, x))
    u2 = op.Mul(x, op.scalar(6 * a * c, x))
    cube = op.Mul(op.Mul(square, x), op.scalar(a * c, x))
    t = op.Tanh(op.Add(op.Mul(x, op.scalar(c, x)), cube))
    s = op.Sub(op.scalar(1, x), op.Mul(t, t))
    inner = op.Sub(u2, op.Mul(op.Mul(t, op.scalar(2, x)), op.Mul(u1, u1)))
    return op.Mul(s, op.Add(u1, op.Mul(op.Mul(x, op.scalar(0.5, x)), inner)))


def _quick_gelu_curve(op: Ops, node: ir.Node, x: ir.Value) -> ir.Value:
    """α·s(1 - s)·(2 + αx(1 - 2s)), with s = σ(αx)."""
    alpha = op.scalar(attribute(node, "alpha", 1.702), x)
    one, two = op.scalar(1, x), op.scalar(2, x)
    scaled = op.Mul(x, alpha)
    s = op.Sigmoid(scaled)
    steep = op.Mul(alpha, op.Mul(s, op.Sub(one, s)))
    return op.Mul(steep, op.Add(two, op.Mul(scaled, op.Sub(one, op.Mul(two, s)))))


def _declare(op_type: str, curve: Curve) -> None:
    """f'(x + b)·dY: g·f'(x + b) for dY, g·dY·f''(x + b) for x and b."""

    @gradient(op_type, domain=MS)
    def rule(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
        dy, x, *bias = operands(node)
        again = op.__getattr__(op_type)
        at = op.Add(x, bias[0]) if bias else x
        dx = op.Mul(op.Mul(g, dy), curve(op, node, at))
        first = again(g, *node.inputs[1:], **forwarded(node), _domain=MS)
        return [first, dx, *(op.unbroadcast(dx, to=b) for b in bias)]


_declare("GeluGrad", _gelu_curve)
_declare("FastGeluGrad", _fast_gelu_curve)


@gradient("GeluGradSum", domain=OWN, all_outputs=True)
def gelu_grad_sum(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """As the gradient of Gelu; what the sums get, every row gets."""
    dy, x = operands(node)
    exact = attribute(node, "approximate", "none") == "none"
    g = _with_sums(op, gs, dy)
    if g is None:
        return [None, None]
    curve = _gelu_curve if exact else _fast_gelu_curve
    again = op.GeluGrad if exact else op.FastGeluGrad
    return [again(g, x, _domain=MS), op.Mul(op.Mul(g, dy), curve(op, node, x))]


_declare("QuickGeluGrad", _quick_gelu_curve)
_declare("BiasGeluGrad_dX", _gelu_curve)
_declare("BiasFastGeluGrad_dX", _fast_gelu_curve)


@gradient("SoftmaxGrad_13", domain=MS)
def softmax_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """Y(dY - Σ dY·Y) along the axis."""
    dy, y = operands(node)
    return [*_softmax(op, dy, y, g, attribute(node, "axis", -1))]


@gradient("LogSoftmaxGrad_13", domain=MS)
def log_softmax_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """dY - exp(Y)·Σ dY along the axis."""
    dy, y = operands(node)
    return [*_log_softmax(op, dy, y, g, attribute(node, "axis", -1))]


@gradient("SoftmaxGrad", "LogSoftmaxGrad", domain=MS)
def flat_softmax_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """The same with everything from the axis on taken for one row."""
    dy, y = operands(node)
    axis = attribute(node, "axis", 1)
    rows = [op.Flatten(value, axis=axis) for value in (dy, y, g)]
    rule = _softmax if node.op_type == "SoftmaxGrad" else _log_softmax
    return [op.reshape_like(d, y) for d in rule(op, rows[0], rows[1], rows[2], 1)]


def _softmax(op: Ops, dy: ir.Value, y: ir.Value, g: ir.Value, axis: int) -> Pair:
    """g reaches dY as dY reaches x; Y gets g(dY - Σ dY·Y) - dY·Σ g·Y."""
    along = [op.reduce_sum(op.Mul(v, y), [axis], keepdims=True) for v in (dy, g)]
    d_y = op.Sub(op.Mul(g, op.Sub(dy, along[0])), op.Mul(dy, along[1]))
    return op.SoftmaxGrad_13(g, y, axis=axis, _domain=MS), d_y


def _log_softmax(op: Ops, dy: ir.Value, y: ir.Value, g: ir.Value, axis: int) -> Pair:
    """g - Σ g·exp(Y) for dY, -g·exp(Y)·Σ dY for Y."""
    weighted = op.Mul(g, op.Exp(y))
    d_dy = op.Sub(g, op.reduce_sum(weighted, [axis], keepdims=True))
    return d_dy, op.Neg(op.Mul(weighted, op.reduce_sum(dy, [axis], keepdims=True)))


@gradient("DropoutGrad", "BitmaskDropoutGrad", "FakeQuantGrad", domain=MS)
def masked_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """Linear in dY, with the same mask."""
    again = op.__getattr__(node.op_type)
    return to_first(node, again(g, *node.inputs[1:], **forwarded(node), _domain=MS))


@gradient("SoftmaxDropoutGrad", domain=MS)
def softmax_dropout_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """SoftmaxGrad of DropoutGrad."""
    dy, mask, y, ratio = inputs_of(node, 4)
    assert dy is not None and y is not None
    dropped = op.DropoutGrad(dy, mask, ratio, op.const(True), _domain=MS)
    axis = attribute(node, "axis", 1)
    rows = [op.Flatten(value, axis=axis) for value in (dropped, y, g)]
    d_dropped, d_y = (op.reshape_like(d, y) for d in _softmax(op, rows[0], rows[1], rows[2], 1))
    d_dy = op.DropoutGrad(d_dropped, mask, ratio, op.const(True), _domain=MS)
    return [d_dy, None, d_y, None][: len(node.inputs)]


@gradient("GatedGrad", domain=OWN, all_outputs=True)
def gated_grad(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """Those of dY·up·act'(gate) and of dY·act(gate)."""

    def formula(op: Ops, dy: ir.Value, gate: ir.Value, up: ir.Value) -> Pair:
        return _gated_slopes(op, node, dy, gate, up)

    return through(op, formula, operands(node), [*gs, None][:2])


@gradient("GatedHalvesGrad", domain=OWN)
def gated_halves_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """The same of halves."""
    axis, first = attribute(node, "axis", -1), attribute(node, "gate", 0)

    def formula(op: Ops, dy: ir.Value, x: ir.Value) -> list[ir.Value]:
        size = op.Gather(op.shape(dy), op.const([axis]))
        parts = op.Split(x, op.Concat(size, size, axis=0), axis=axis, _outputs=2)
        slopes = _gated_slopes(op, node, dy, parts[first], parts[1 - first])
        return [op.Concat(slopes[first], slopes[1 - first], axis=axis)]

    return through(op, formula, operands(node), [g])


def _gated_slopes(op: Ops, node: ir.Node, dy: ir.Value, gate: ir.Value, up: ir.Value) -> Pair:
    """dY·up·act'(gate) and dY·act(gate)."""
    kind = attribute(node, "activation", "gelu")
    above = op.Mul(dy, up)
    if kind in ("sigmoid", "relu"):
        name = kind.capitalize()
        y = op.__getattr__(name)(gate)
        return op.__getattr__(f"{name}Grad")(above, y, _domain=MS), op.Mul(dy, y)
    name = {"gelu": "Gelu", "gelu_tanh": "FastGelu", "swish": "QuickGelu"}[kind]
    given = {"alpha": real(node, "alpha", 1.702)} if kind == "swish" else {}
    y = op.__getattr__(name)(gate, **given, _domain=MS)
    return op.__getattr__(f"{name}Grad")(above, gate, **given, _domain=MS), op.Mul(dy, y)


@gradient("GatherGrad", domain=MS)
def gather_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """What was added is picked."""
    axis = attribute(node, "axis", 0)
    return [None, None, op.Gather(g, node.inputs[1], axis=axis)]


@gradient("GatherGradAdd", domain=OWN)
def gather_grad_add(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """What was added is picked; the base gets all."""
    return [None, op.Gather(g, node.inputs[0], axis=0), g]


@gradient("ConcatSum", domain=OWN, all_outputs=True)
def concat_sum(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """Each part gets its columns; what the sums get, every row gets."""
    g = _with_sums(op, gs, node.outputs[0])
    if g is None:
        return [None] * len(node.inputs)
    sizes = [op.Gather(op.shape(x), op.const([-1])) for x in operands(node)]
    return list(op.Split(g, op.Concat(*sizes, axis=0), axis=-1, _outputs=len(node.inputs)))


@gradient("DropoutGradSum", domain=OWN, all_outputs=True)
def dropout_grad_sum(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """As the gradient of dropout; what the sums get, every row gets."""
    g = _with_sums(op, gs, operands(node)[0])
    if g is None:
        return [None] * len(node.inputs)
    again = op.DropoutGrad(g, *node.inputs[1:], _domain=MS)
    return [again, *[None] * (len(node.inputs) - 1)]


def _with_sums(op: Ops, gs: Sequence[Grad], like: ir.Value) -> Grad:
    """The gradient of a value that is given as it is, and summed over all axes but the last."""
    every = None if len(gs) < 2 or gs[1] is None else op.expand(gs[1], like)
    return op.add(gs[0], every)


@gradient("GatherElementsGrad", domain=MS)
def gather_elements_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """What was added is picked."""
    axis = attribute(node, "axis", 0)
    return [op.GatherElements(g, node.inputs[2], axis=axis), None, None]


@gradient("GatherNDGrad", domain=MS)
def gather_nd_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """What was added is picked."""
    batch = attribute(node, "batch_dims", 0) or None
    return [None, None, op.GatherND(g, node.inputs[1], batch_dims=batch)]


@gradient("SliceGrad", domain=MS)
def slice_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """What was written is cut out."""
    return to_first(node, op.Slice(g, *node.inputs[2:]))


@gradient("BatchScale", domain=MS, all_outputs=True)
def batch_scale(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """Σ s_i·g_i."""
    terms = [
        None if g is None else op.Mul(g, op.scalar(attribute(node, f"scale_{i}", 1.0), g))
        for i, g in enumerate(gs)
    ]
    return [op.add(*terms)]


@gradient("ResizeGrad", domain=MS)
def resize_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """The map that it is the transposed of; what lies outside of the image counts as 0."""
    dy, _, roi, scales = inputs_of(node, 4)
    assert dy is not None
    axes = attribute(node, "axes", None)
    sizes = op.shape(dy)
    if axes is not None:
        sizes = op.Gather(sizes, op.ints(axes), axis=0)
    options = forwarded(node, "extrapolation_value")
    return to_first(node, op.Resize(g, roi, scales, None if scales else sizes, **options))
