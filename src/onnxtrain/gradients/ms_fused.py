"""Gradients of fused convolutions, products and group normalizations."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.errors import NoGradientError
from onnxtrain.gradients.chain import through
from onnxtrain.gradients.known import (
    exact_in_float,
    inputs_of,
    last_axis,
    moved,
    need_rank,
    operands,
    real,
)
from onnxtrain.gradients.rules import Grad, attribute, find_rule, forwarded, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType

_DEFAULTS: dict[str, tuple[float, ...]] = {
    "": (),
    "Clip": (float("-inf"), float("inf")),
    "Elu": (1.0,),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01,),
    "Relu": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": (1.0,),
}
"""Activations, and the defaults of their parameters."""


def before(op: Ops, node: ir.Node, dy: ir.Value, given: Sequence[float | None]) -> ir.Value:
    """The gradient in front of the activation of a fused node, from the node's output."""
    name, y = attribute(node, "activation", ""), node.outputs[0]
    if name not in _DEFAULTS:
        raise NoGradientError(f"no gradient of activation '{name}', node '{node.name}'")
    given = [*given, *[None] * 2]
    numbers = [d if g is None else g for d, g in zip(_DEFAULTS[name], given, strict=False)]
    simple = {"": None, "Relu": "ReluGrad", "Sigmoid": "SigmoidGrad", "Tanh": "TanhGrad"}
    if name in simple:
        operator = simple[name]
        return dy if operator is None else getattr(op, operator)(dy, y, _domain=MS)
    if name == "LeakyRelu" and numbers[0] > 0:
        return op.LeakyReluGrad(dy, y, alpha=numbers[0], _domain=MS)
    return op.Mul(dy, _slope(op, node, name, y, numbers))


def _slope(op: Ops, node: ir.Node, name: str, y: ir.Value, numbers: Sequence[float]) -> ir.Value:
    """f'(x) as a function of y = f(x)."""
    zero, one = op.scalar(0, y), op.scalar(1, y)
    if name == "Clip":
        low, high = (op.scalar(n, y) for n in numbers)
        return op.cast(op.And(op.Greater(y, low), op.Less(y, high)), y)
    if name == "HardSigmoid":
        inside = op.And(op.Greater(y, zero), op.Less(y, one))
        return op.where(inside, op.scalar(numbers[0], y), zero)
    if name == "Elu":
        return op.where(op.Greater(y, zero), one, op.Add(y, op.scalar(numbers[0], y)))
    if name == "Softplus":
        return op.Sub(one, op.Exp(op.Neg(y)))
    if name == "Softsign":
        rest = op.Sub(one, op.Abs(y))
        return op.Mul(rest, rest)
    if name == "ThresholdedRelu":
        return op.cast(op.Not(op.equal(y, zero)), y)
    raise NoGradientError(
        f"no gradient of {name} with the parameters {list(numbers)}, node '{node.name}'"
    )


@gradient("FusedConv", domain=MS)
def fused_conv(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = f(Conv(x, w, b) + z): the gradient before f is that of z, and goes through Conv."""
    x, w = node.inputs[:2]
    inner = before(op, node, dy, attribute(node, "activation_params", ()))
    grads = op.ConvGrad(inner, x, w, **_window(node), _outputs=3, _domain=MS)
    z = inputs_of(node, 4)[3]
    found: list[Grad] = [*grads, None if z is None else op.unbroadcast(inner, to=z)]
    return found[: len(node.inputs)]


def _window(node: ir.Node) -> dict[str, ir.Attr]:
    return forwarded(node, "activation", "activation_params")


@gradient("NhwcFusedConv", domain=MS)
def nhwc_fused_conv(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """That of FusedConv, with the channels of images moved to the front and back."""
    x, w = operands(node)[:2]
    inner = before(op, node, dy, attribute(node, "activation_params", ()))
    images = (_channels_first(op, value) for value in (inner, x))
    dx, dw, db = op.ConvGrad(*images, w, **_window(node), _outputs=3, _domain=MS)
    z = inputs_of(node, 4)[3]
    dz = None if z is None else op.unbroadcast(inner, to=z)
    found: list[Grad] = [_channels_last(op, dx), dw, db, dz]
    return found[: len(node.inputs)]


@gradient("NhwcConv", domain=MS)
def nhwc_conv(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """That of Conv, with the channels moved to the front and back."""
    x, w = operands(node)[:2]
    x, w, inner = (_channels_first(op, value) for value in (x, w, dy))
    dx, dw, db = op.ConvGrad(inner, x, w, **forwarded(node), _outputs=3, _domain=MS)
    found: list[Grad] = [_channels_last(op, dx), _channels_last(op, dw), db]
    return found[: len(node.inputs)]


@gradient("NhwcMaxPool", domain=MS)
def nhwc_max_pool(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """That of MaxPool, with the channels moved to the front and back."""
    (x,) = operands(node)
    window, planes = forwarded(node), _channels_first(op, x)
    _, indices = op.MaxPool(exact_in_float(op, planes), **window, _outputs=2)
    grad = op.MaxPoolGrad(_channels_first(op, dy), indices, op.Shape(planes), **window)
    return [_channels_last(op, grad)]


def _channels_first(op: Ops, x: ir.Value) -> ir.Value:
    return moved(op, x, "n...c->nc...", "an operator with channels last")


def _channels_last(op: Ops, x: ir.Value) -> ir.Value:
    return moved(op, x, "nc...->n...c", "an operator with channels last")


def _parameters(node: ir.Node) -> list[float | None]:
    return [attribute(node, f"activation_{name}", None) for name in ("alpha", "beta")]


@gradient("FusedGemm", domain=MS)
def fused_gemm(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = f(Gemm(a, b, c)): the gradient before f goes through Gemm."""
    return _by_rule(op, node, "", "Gemm", before(op, node, dy, _parameters(node)))


@gradient("FusedMatMulActivation", domain=MS)
def fused_matmul_activation(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = f(FusedMatMul(a, b)): the gradient before f goes through FusedMatMul."""
    if attribute(node, "activation", "") == "Softmax":
        axis = attribute(node, "activation_axis", -1)
        inner = op.SoftmaxGrad_13(dy, node.outputs[0], axis=axis, _domain=MS)
    else:
        inner = before(op, node, dy, _parameters(node))
    return _by_rule(op, node, MS, "FusedMatMul", inner)


@gradient("TransposeMatMul", domain=MS)
def transpose_matmul(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """That of FusedMatMul, of which it is the first form."""
    return _by_rule(op, node, MS, "FusedMatMul", dy)


def _by_rule(op: Ops, node: ir.Node, domain: str, name: str, dy: ir.Value) -> list[Grad]:
    """The rule of another operator with the same inputs and attributes."""
    rule = find_rule(domain, name, op.opset if domain == "" else 1)
    assert rule is not None
    return list(rule.apply(op, node, [dy]))


@gradient("GemmFastGelu", domain=MS)
def gemm_fast_gelu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = gelu(x·w + bias), of which the sum is computed again."""

    def formula(op: Ops, x: ir.Value, w: ir.Value, bias: ir.Value | None = None) -> list[ir.Value]:
        return [op.FastGelu(op.MatMul(x, w), bias, _domain=MS)]

    return _present(node, through(op, formula, operands(node), [dy]))


def _present(node: ir.Node, grads: Sequence[Grad]) -> list[Grad]:
    """Gradients of the inputs that are there, with None for the others between them."""
    rest = iter(grads)
    return [None if value is None else next(rest) for value in node.inputs]


@gradient("BiasAdd", domain=MS)
def bias_add(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy for each, summed back for the bias."""
    return [op.unbroadcast(dy, to=value) for value in operands(node)]


@gradient("BiasSplitGelu", domain=MS)
def bias_split_gelu(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = l·gelu(r): gelu(r)·dy for the left half, l·gelu'(r)·dy for the right one."""
    x, bias = operands(node)
    total = op.Add(x, bias)
    last = last_axis(op, x, "BiasSplitGelu")
    half = op.Div(op.Gather(op.shape(x), op.ints([last]), axis=0), op.ints([2]))
    axes, end = op.ints([last]), op.ints([2**62])
    left = op.Slice(total, op.ints([0]), half, axes)
    right = op.Slice(total, half, end, axes)
    d_left = op.Mul(dy, op.Gelu(right, _domain=MS))
    d_right = op.GeluGrad(op.Mul(dy, left), right, _domain=MS)
    dx = op.Concat(d_left, d_right, axis=last)
    return [dx, op.unbroadcast(dx, to=bias)]


@gradient("GroupNorm", domain=MS)
def group_norm(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """That of its formula."""
    return through(op, lambda op, *xs: [_normalized(op, node, *xs)], operands(node), [dy])


@gradient("SkipGroupNorm", domain=MS, all_outputs=True)
def skip_group_norm(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """That of its formula; s = x + skip + bias may be a result too."""

    def formula(op: Ops, *present: ir.Value) -> list[ir.Value]:
        x, gamma, beta, skip, *bias = present
        if skips_rows:
            skip = op.unsqueeze(skip, [1, 2] if channels_last else [2, 3])
        s = op.Add(x, skip)
        for extra in bias:
            s = op.Add(s, extra if channels_last else op.unsqueeze(extra, [1, 2]))
        return [_normalized(op, node, s, gamma, beta), s]

    channels_last = attribute(node, "channels_last", 1)
    skips_rows = need_rank(operands(node)[3], "SkipGroupNorm") == 2
    grads = through(op, formula, operands(node), [*dys, None][:2])
    return _present(node, grads)


def _normalized(op: Ops, node: ir.Node, x: ir.Value, gamma: ir.Value, beta: ir.Value) -> ir.Value:
    """f(γ·n + β) with n normalized over groups of channels, in float for shorter types."""
    work = DataType.DOUBLE if x.dtype == DataType.DOUBLE else DataType.FLOAT
    channels_last = attribute(node, "channels_last", 1)
    groups = attribute(node, "groups", 1)
    wide = op.cast(x, work)
    planes = _channels_first(op, wide) if channels_last else wide
    one, zero = (op.const([value] * groups, work) for value in (1, 0))
    grouped = op.folded(planes, [0, groups, -1])
    epsilon = real(node, "epsilon", 1e-5)
    n = op.InstanceNormalization(grouped, one, zero, epsilon=epsilon)
    n = op.rows(op.reshape_like(n, planes))
    factor, shift = (op.unsqueeze(op.cast(value, work), [1]) for value in (gamma, beta))
    y = op.reshape_like(op.Add(op.Mul(n, factor), shift), planes)
    if attribute(node, "activation", 0):
        y = op.Mul(y, op.Sigmoid(y))
    return op.cast(_channels_last(op, y) if channels_last else y, x)
