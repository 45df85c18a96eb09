"""Gradients of the gradient operators of convolution, pooling and normalization."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.chain import through
from onnxtrain.gradients.channel_norm import PER_CHANNEL, by_channel, normal, normal_grad
from onnxtrain.gradients.known import HALVES, axis_in, need_rank, operands, real
from onnxtrain.gradients.pool import maybe_hollow
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, OWN, DataType

Three = tuple[ir.Value, ir.Value, ir.Value]


@gradient("ConvGrad", "ConvTransposeGrad", domain=MS, all_outputs=True)
def conv_grad(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """Y = X*W + B is linear in each: dY gets gX*W + X*gW + gB, X and W get what dY gives them."""
    dy, x, w = operands(node)
    forward = op.__getattr__(node.op_type.removesuffix("Grad"))
    again, options = op.__getattr__(node.op_type), forwarded(node)
    g_x, g_w, g_b = [*gs, None, None][:3]
    terms: list[Grad] = [None, None, None]
    d_x = d_w = None
    if g_x is not None:
        terms[0] = forward(g_x, w, **options)
        _, d_w, _ = again(dy, g_x, w, **options, _outputs=3, _domain=MS)
    if g_w is not None:
        terms[1] = forward(x, g_w, **options)
        d_x, _, _ = again(dy, x, g_w, **options, _outputs=3, _domain=MS)
    if g_b is not None:
        spatial = list(range(1, need_rank(x, node.op_type) - 1))
        terms[2] = op.expand(op.unsqueeze(g_b, spatial), dy)
    return [op.add(*terms), d_x, d_w]


@gradient("MaxPoolGrad")
def max_pool_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """What was added is picked; indices may count columns first, or be -1 and add nothing."""
    _, indices, *_ = operands(node)
    if attribute(node, "storage_order", 0):
        rank = need_rank(g, "MaxPoolGrad")
        g = op.Transpose(g, perm=[0, 1, *range(rank - 1, 1, -1)])
    picked = op.Gather(op.Reshape(g, op.ints([-1])), indices, axis=0)
    if maybe_hollow(node):
        nowhere = op.equal(indices, op.const(-1, DataType.INT64))
        picked = op.where(nowhere, op.scalar(0, g), picked)
    return [picked, *[None] * (len(node.inputs) - 1)]


@gradient("AveragePoolGrad")
def average_pool_grad(op: Ops, node: ir.Node, g: ir.Value) -> list[Grad]:
    """The average again."""
    return [op.AveragePool(g, **forwarded(node)), None][: len(node.inputs)]


@gradient("LayerNormalizationGrad", domain=MS, all_outputs=True)
def layer_normalization_grad(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """dX = r(h - mean(h) - n·mean(h·n)) with h = dY·scale, dScale = Σ dY·n, dB = Σ dY."""
    dy, x, scale = operands(node)[:3]
    rank = need_rank(x, "LayerNormalizationGrad")
    first = axis_in(x, attribute(node, "axis", -1))
    inner, outer = list(range(first, rank)), list(range(first))
    epsilon = real(node, "epsilon", 1e-5)

    def formula(op: Ops, dy: ir.Value, x: ir.Value, scale: ir.Value) -> list[ir.Value]:
        wide = [_wide(op, value) for value in (dy, x, scale)]
        _, n, r = normal(op, wide[1], inner, epsilon)
        d_x = normal_grad(op, op.Mul(wide[0], wide[2]), n, r, inner)
        sums = [op.reduce_sum(v, outer, keepdims=False) for v in (op.Mul(wide[0], n), wide[0])]
        return [op.cast(d_x, x), *(op.cast(value, scale) for value in sums)]

    return [*through(op, formula, [dy, x, scale], _padded(gs, 3)), None, None]


@gradient("LayerNormalizationGradAdd", domain=OWN, all_outputs=True)
def layer_normalization_grad_add(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """As LayerNormalizationGrad; what is added to dX gets all that dX gets.

    What the sums get, every row gets.
    """
    first, *rest = _padded(gs, 4)
    if rest[2] is not None:
        first = op.add(first, op.expand(rest[2], operands(node)[1]))
    return [*layer_normalization_grad(op, node, [first, *rest[:2]]), first]


def _wide(op: Ops, x: ir.Value) -> ir.Value:
    """Computed in float32 at least."""
    return op.cast(x, DataType.FLOAT) if x.dtype in HALVES else x


def _padded(gs: Sequence[Grad], count: int) -> list[Grad]:
    return [*gs, *[None] * count][:count]


@gradient("SimplifiedLayerNormalizationGrad", domain=MS, all_outputs=True)
def simplified_layer_normalization_grad(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """dX = r(h - n·mean(h·n)) with h = dY·scale and n = x·r, dScale = Σ dY·n."""
    dy, x, scale = operands(node)[:3]
    rank = need_rank(x, "SimplifiedLayerNormalizationGrad")
    first = axis_in(x, attribute(node, "axis", -1))
    inner, outer = list(range(first, rank)), list(range(first))
    epsilon = real(node, "epsilon", 1e-5)

    def formula(op: Ops, dy: ir.Value, x: ir.Value, scale: ir.Value) -> list[ir.Value]:
        wide = [_wide(op, value) for value in (dy, x, scale)]
        square = op.reduce("ReduceMean", op.Mul(wide[1], wide[1]), inner)
        r = op.Reciprocal(op.Sqrt(op.Add(square, op.scalar(epsilon, square))))
        n, h = op.Mul(wide[1], r), op.Mul(wide[0], wide[2])
        along = op.reduce("ReduceMean", op.Mul(h, n), inner)
        d_x = op.Mul(r, op.Sub(h, op.Mul(n, along)))
        d_scale = op.reduce_sum(op.Mul(wide[0], n), outer, keepdims=False)
        return [op.cast(d_x, x), op.cast(d_scale, scale)]

    return [*through(op, formula, [dy, x, scale], _padded(gs, 2)), None]


@gradient("SimplifiedLayerNormalizationGradAdd", domain=OWN, all_outputs=True)
def simplified_layer_normalization_grad_add(
    op: Ops, node: ir.Node, gs: Sequence[Grad]
) -> list[Grad]:
    """As SimplifiedLayerNormalizationGrad; what is added to dX gets all that dX gets."""
    return [*simplified_layer_normalization_grad(op, node, gs), gs[0]]


@gradient("BatchNormalizationGrad", domain=MS, all_outputs=True)
def batch_normalization_grad(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """As LayerNormalizationGrad, with statistics for each channel."""
    return [*_by_channel(op, node, gs, None), None, None]


@gradient("BatchNormReluGrad", domain=OWN, all_outputs=True)
def batch_norm_relu_grad(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """The same of dY where the Relu was open; the bias only moves where that is."""
    return [*_by_channel(op, node, gs, operands(node)[3]), None, None, None]


def _by_channel(op: Ops, node: ir.Node, gs: Sequence[Grad], bias: Grad) -> list[Grad]:
    """Gradients of dY, X and scale; with a bias dY counts where a Relu behind is open."""
    dy, x, scale = operands(node)[:3]
    epsilon = real(node, "epsilon", 1e-5)

    def formula(op: Ops, dy: ir.Value, x: ir.Value, scale: ir.Value) -> list[ir.Value]:
        grad, data = (by_channel(op, _wide(op, value)) for value in (dy, x))
        _, n, r = normal(op, data, PER_CHANNEL, epsilon)
        factor = op.unsqueeze(op.cast(scale, grad), [1])
        if bias is not None:
            line = op.Add(op.Mul(n, factor), op.unsqueeze(op.cast(bias, grad), [1]))
            is_open = op.Greater(line, op.scalar(0, line))
            grad = op.Where(is_open, grad, op.scalar(0, grad))
        h = op.Mul(grad, factor)
        d_x = op.reshape_like(normal_grad(op, h, n, r, PER_CHANNEL), x)
        sums = [op.reduce_sum(v, PER_CHANNEL, keepdims=False) for v in (op.Mul(grad, n), grad)]
        return [op.cast(d_x, x), *(op.cast(value, scale) for value in sums)]

    return [*through(op, formula, [dy, x, scale], _padded(gs, 3))]


@gradient("GroupNormalizedGrad", domain=OWN, all_outputs=True)
def group_normalized_grad(op: Ops, node: ir.Node, gs: Sequence[Grad]) -> list[Grad]:
    """As LayerNormalizationGrad, with statistics for each group of channels."""
    dy, x, scale = operands(node)[:3]
    bias = node.inputs[5] if len(node.inputs) > 5 else None
    groups, epsilon = attribute(node, "num_groups", 1), real(node, "epsilon", 1e-5)

    def formula(op: Ops, dy: ir.Value, x: ir.Value, scale: ir.Value, *bias: ir.Value) -> Three:
        grad, data, weight = (_wide(op, value) for value in (dy, x, scale))
        grouped = op.folded(data, [0, groups, -1])
        _, n, r = normal(op, grouped, [2], epsilon)
        rows, channels = op.rows(grad), op.rows(data)
        if bias:
            line = op.Mul(op.reshape_like(n, channels), op.unsqueeze(weight, [1]))
            line = op.Add(line, op.unsqueeze(_wide(op, bias[0]), [1]))
            rows = _activated(op, node, rows, line)
        inner = op.reshape_like(op.Mul(rows, op.unsqueeze(weight, [1])), grouped)
        d_x = op.reshape_like(normal_grad(op, inner, n, r, [2]), data)
        product = op.Mul(rows, op.reshape_like(n, channels))
        sums = [op.reduce_sum(v, PER_CHANNEL, keepdims=False) for v in (product, rows)]
        return op.cast(d_x, x), op.cast(sums[0], scale), op.cast(sums[1], scale)

    given = [dy, x, scale] if bias is None else [dy, x, scale, bias]
    found = through(op, formula, given, _padded(gs, 3))
    return [*found[:3], None, None, *found[3:]]


def _activated(op: Ops, node: ir.Node, dy: ir.Value, x: ir.Value) -> ir.Value:
    """dY times the slope of what is behind a normalization."""
    kind = attribute(node, "activation", "none")
    if kind == "relu":
        return op.ReluGrad(dy, op.Relu(x), _domain=MS)
    if kind == "swish":
        return op.QuickGeluGrad(dy, x, alpha=real(node, "alpha", 1.0), _domain=MS)
    return dy
