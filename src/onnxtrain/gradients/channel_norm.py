"""Gradients of normalizations by channel: batch, instance, group, local response, Lp."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.gradients.chain import through
from onnxtrain.gradients.known import HALVES, axis_in, operands, output_of, rank_of, real
from onnxtrain.gradients.reduction import nonzero
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.types import ALL_BUT_CHANNELS, MS, OWN, DataType

PER_CHANNEL = [0, 2]
"""Axes of [N, C, ...] to sum over for one value per channel."""


@gradient("BatchNormInternal", domain=MS, all_outputs=True)
def batch_norm_internal(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """dX, dScale and dB in one operator, from the statistics of the batch."""
    mean = operands(node)[3]
    if not attribute(node, "training_mode", 1):
        return _fixed_statistics(op, node, dys[0])
    assert mean.dtype is not None
    for index, suffix in ((1, "_running_mean"), (2, "_running_var")):
        output_of(node, index, suffix, mean.dtype, mean.shape)
    saved = output_of(node, 3, "_saved_mean", mean.dtype, mean.shape)
    inverse = output_of(node, 4, "_saved_inv_std", mean.dtype, mean.shape)
    direct = _batch_statistics(op, node, dys[0], saved, inverse)
    return [*_joined(op, direct, _through_statistics(op, node, dys, inverted=True))]


@gradient("BatchNormRelu", domain=OWN, all_outputs=True)
def batch_norm_relu(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """dX, dScale and dB in one operator, which finds out again where the Relu was open."""
    x, scale, bias, mean, _ = operands(node)
    assert mean.dtype is not None
    for index, suffix in ((1, "_running_mean"), (2, "_running_var")):
        output_of(node, index, suffix, mean.dtype, mean.shape)
    saved = output_of(node, 3, "_saved_mean", mean.dtype, mean.shape)
    inverse = output_of(node, 4, "_saved_inv_std", mean.dtype, mean.shape)
    direct: list[Grad] = [None] * 5
    if dys[0] is not None:
        states = (dys[0], x, scale, bias, saved, inverse)
        epsilon = real(node, "epsilon", 1e-5)
        found = op.BatchNormReluGrad(*states, epsilon=epsilon, _outputs=3, _domain=OWN)
        direct = [*found, None, None]
    return [*_joined(op, direct, _through_statistics(op, node, dys, inverted=True))]


@gradient("BatchNormalization", since=7, all_outputs=True)
def batch_normalization(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """With given statistics an affine map of X; while training, as BatchNormInternal.

    Running statistics are differentiable as well: m·old + (1 - m)·new.
    """
    training = attribute(node, "training_mode", 0) or (op.opset < 14 and len(node.outputs) > 1)
    if not training:
        return _fixed_statistics(op, node, dys[0])
    x, _, _, mean, _ = operands(node)
    wide = by_channel(op, op.cast(x, DataType.FLOAT) if x.dtype in HALVES else x, _shared(node))
    center, _, inverse = normal(op, wide, PER_CHANNEL, real(node, "epsilon", 1e-5))
    statistics = [op.cast(op.Reshape(s, op.ints([-1])), mean) for s in (center, inverse)]
    direct = _batch_statistics(op, node, dys[0], statistics[0], statistics[1])
    return [*_joined(op, direct, _through_statistics(op, node, dys, inverted=False))]


def by_channel(op: Ops, x: ir.Value, shared: bool = True) -> ir.Value:
    """[N, C, everything else]: a lone axis has one channel; what is not shared, one per place."""
    if rank_of(x) == 1:
        return op.Reshape(x, op.ints([-1, 1, 1]))
    return op.rows(x) if shared else op.Reshape(x, op.ints([0, -1, 1]))


def _shared(node: ir.Node) -> bool:
    """Whether all places of a channel share its parameters; else those have more axes."""
    scale = operands(node)[1]
    return bool(attribute(node, "spatial", 1)) and (rank_of(scale) or 1) == 1


def _joined(op: Ops, direct: Sequence[Grad], others: Sequence[Grad]) -> list[Grad]:
    return [op.add(a, b) for a, b in zip(direct, others, strict=True)]


def _batch_statistics(
    op: Ops, node: ir.Node, dy: Grad, mean: ir.Value, inverse: ir.Value
) -> list[Grad]:
    """What reaches the inputs through Y."""
    x, scale = operands(node)[:2]
    if dy is None:
        return [None] * 5
    plain = rank_of(x) != 1 and _shared(node)
    rows = [dy, x] if plain else [by_channel(op, value, _shared(node)) for value in (dy, x)]
    weights = [scale, mean, inverse]
    states = [*rows, *(weights if plain else [op.Reshape(w, op.ints([-1])) for w in weights])]
    epsilon = real(node, "epsilon", 1e-5)
    found = op.BatchNormalizationGrad(*states, epsilon=epsilon, _outputs=3, _domain=MS)
    if plain:
        return [*found, None, None]
    return [*map(op.reshape_like, found, (x, scale, scale)), None, None]


def _through_statistics(
    op: Ops, node: ir.Node, dys: Sequence[Grad], *, inverted: bool
) -> list[Grad]:
    """What reaches X and the old statistics through running ones, and those of the batch.

    Args:
        op: Where nodes are emitted.
        node: Its outputs after Y are running mean and variance, and mean and variance.
        dys: Gradients of all outputs.
        inverted: Whether the last output is 1/√(variance + ε) instead.
    """
    x, _, _, mean, var = operands(node)
    if not any(dys[1:]):
        return [None] * 5
    momentum, epsilon = real(node, "momentum", 0.9), real(node, "epsilon", 1e-5)

    def formula(op: Ops, x: ir.Value, mean: ir.Value, var: ir.Value) -> list[ir.Value]:
        rows = op.cast(by_channel(op, x, _shared(node)), mean)
        center = op.reduce("ReduceMean", rows, PER_CHANNEL)
        offset = op.Sub(rows, center)
        spread = op.reduce("ReduceMean", op.Mul(offset, offset), PER_CHANNEL)
        new = [op.reshape_like(value, mean) for value in (center, spread)]
        keep, take = op.scalar(momentum, mean), op.scalar(1 - momentum, mean)
        running = [
            op.Add(op.Mul(old, keep), op.Mul(value, take))
            for old, value in zip((mean, var), new, strict=True)
        ]
        if inverted:
            new[1] = op.Reciprocal(op.Sqrt(op.Add(new[1], op.scalar(epsilon, mean))))
        return [*running, *new][: len(dys) - 1]

    d_x, d_mean, d_var = through(op, formula, [x, mean, var], dys[1:])
    return [d_x, None, None, d_mean, d_var]


def _fixed_statistics(op: Ops, node: ir.Node, dy: Grad) -> list[Grad]:
    """y = scale·(x - mean)·r + b with r = 1/√(var + ε), differentiated in all five inputs."""
    if dy is None:
        return [None] * 5
    x, *parameters = operands(node)
    flat = [
        value if rank_of(value) == 1 else op.Reshape(value, op.ints([-1])) for value in parameters
    ]
    scale = flat[0]
    grad, data = (op.cast(by_channel(op, value, _shared(node)), scale) for value in (dy, x))
    center, spread = op.cast(flat[2], scale), op.cast(flat[3], scale)
    epsilon = op.scalar(real(node, "epsilon", 1e-5), scale)
    r = op.Reciprocal(op.Sqrt(op.Add(spread, epsilon)))
    steep = op.Mul(scale, r)
    offset = op.Sub(data, op.unsqueeze(center, [1]))
    db = op.reduce_sum(grad, PER_CHANNEL, keepdims=False)
    moment = op.reduce_sum(op.Mul(grad, offset), PER_CHANNEL, keepdims=False)
    dx = op.reshape_like(op.Mul(grad, op.unsqueeze(steep, [1])), x)
    bend = op.Mul(op.Mul(steep, op.Mul(r, r)), op.scalar(-0.5, scale))
    found = [op.Mul(moment, r), db, op.Neg(op.Mul(db, steep)), op.Mul(moment, bend)]
    shaped = [
        d if rank_of(value) == 1 else op.reshape_like(d, value)
        for d, value in zip(found, parameters, strict=True)
    ]
    return [op.cast(dx, x), *map(op.cast, shaped, parameters)]


def normal(
    op: Ops, x: ir.Value, axes: Sequence[int], epsilon: float
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Mean m, normalized (x - m)·r, and r = 1/√(var + ε) along axes."""
    mean = op.reduce("ReduceMean", x, axes)
    centered = op.Sub(x, mean)
    variance = op.reduce("ReduceMean", op.Mul(centered, centered), axes)
    r = op.Reciprocal(op.Sqrt(op.Add(variance, op.scalar(epsilon, x))))
    return mean, op.Mul(centered, r), r


def normal_grad(op: Ops, grad: ir.Value, n: ir.Value, r: ir.Value, axes: Sequence[int]) -> ir.Value:
    """r·(g - mean(g) - n·mean(g·n))."""
    along = op.reduce("ReduceMean", op.Mul(grad, n), axes)
    rest = op.Sub(op.Sub(grad, op.reduce("ReduceMean", grad, axes)), op.Mul(n, along))
    return op.Mul(r, rest)


@gradient("InstanceNormalization", since=6)
def instance_normalization(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Every channel of every sample is a group of its own."""
    return _grouped(op, node, dy, groups=0, scale_per_group=False)


@gradient("GroupNormalization", since=18, until=20)
def group_normalization_18(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Normalized over groups of channels; one scale and bias for each group."""
    groups = attribute(node, "num_groups", 1)
    return _grouped(op, node, dy, groups=groups, scale_per_group=True)


@gradient("GroupNormalization", since=21)
def group_normalization(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Normalized over groups of channels; one scale and bias for each channel."""
    groups = attribute(node, "num_groups", 1)
    return _grouped(op, node, dy, groups=groups, scale_per_group=False)


def _grouped(
    op: Ops, node: ir.Node, dy: ir.Value, groups: int, scale_per_group: bool
) -> list[Grad]:
    """y = scale·n + bias, with n normalized along everything but sample and group."""
    x, scale, _ = operands(node)
    work = DataType.FLOAT if x.dtype in HALVES else x.dtype
    assert work is not None
    wide, grad = op.cast(x, work), op.cast(dy, work)
    grouped = op.folded(wide, [0, groups, -1])
    _, n, r = normal(op, grouped, [2], real(node, "epsilon", 1e-5))
    channels = grouped if scale_per_group else op.rows(wide)
    rows = op.reshape_like(grad, channels)
    factor = op.unsqueeze(op.cast(scale, work), [1])
    inner = op.reshape_like(op.Mul(rows, factor), grouped)
    dx = op.reshape_like(normal_grad(op, inner, n, r, [2]), x)
    product = op.Mul(rows, op.reshape_like(n, channels))
    sums = [op.reduce_sum(value, PER_CHANNEL, keepdims=False) for value in (product, rows)]
    return [op.cast(dx, x), op.cast(sums[0], scale), op.cast(sums[1], scale)]


@gradient("GroupNormalized", domain=OWN, all_outputs=True)
def group_normalized(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """All in one operator, which needs the statistics."""
    dy, *others = dys
    if dy is None or any(other is not None for other in others):
        return pulled_back(op, node, dys)
    x, scale, bias = operands(node)
    wide = DataType.DOUBLE if x.dtype == DataType.DOUBLE else DataType.FLOAT
    saved = [output_of(node, 1, "_mean", wide), output_of(node, 2, "_inv_std_dev", wide)]
    given = forwarded(node)
    if attribute(node, "activation", "none") != "none":
        saved.append(bias)
    return [*op.GroupNormalizedGrad(dy, x, scale, *saved, **given, _outputs=3, _domain=OWN)]


@gradient("MeanVarianceNormalization", since=9)
def mean_variance_normalization(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = c/(σ + ε) with c = x - mean: (dy - mean(dy))/(σ + ε) - c·mean(dy·c)/(σ(σ + ε)²)."""
    (x,) = operands(node)
    axes = attribute(node, "axes", ALL_BUT_CHANNELS)
    if tuple(axes) == ALL_BUT_CHANNELS:  # of a tensor with fewer axes: those that there are
        rank = rank_of(x)
        if rank is None:
            return pulled_back(op, node, [dy])
        axes = [axis for axis in axes if axis < rank]
    centered = op.Sub(x, op.reduce("ReduceMean", x, axes))
    sigma = op.Sqrt(op.reduce("ReduceMean", op.Mul(centered, centered), axes))
    inverse = op.Reciprocal(op.Add(sigma, op.scalar(1e-9, x)))
    even = op.Mul(op.Sub(dy, op.reduce("ReduceMean", dy, axes)), inverse)
    along = op.reduce("ReduceMean", op.Mul(dy, centered), axes)
    bend = op.Mul(op.Mul(inverse, inverse), op.Div(along, nonzero(op, sigma)))
    return [op.Sub(even, op.Mul(centered, bend))]


@gradient("LpNormalization")
def lp_normalization(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = x/n: (dy - ∂n·Σ dy·y)/n, with ∂n = y for p = 2 and sign(x) for p = 1."""
    (x,) = operands(node)
    axes = [axis_in(x, attribute(node, "axis", -1))]
    y, p = node.outputs[0], attribute(node, "p", 2)
    norm = nonzero(op, op.reduce("ReduceL2" if p == 2 else "ReduceL1", x, axes))
    along = op.reduce_sum(op.Mul(dy, y), axes, keepdims=True)
    direction = y if p == 2 else op.sign(x)
    return [op.Div(op.Sub(dy, op.Mul(direction, along)), norm)]


@gradient("LRN")
def lrn(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = x·s^-β with s = k + α/size·Σ x² over neighbouring channels.

    dx = s^-β·dy - 2αβ/size·x·Σ dy·x·s^(-β-1), summed over the channels whose window holds x.
    """
    (x,) = operands(node)
    size = attribute(node, "size", 1)
    if size < 1:
        raise GraphError(f"no gradient of LRN '{node.name}': size is {size}, must be at least 1")
    alpha, beta = real(node, "alpha", 1e-4), real(node, "beta", 0.75)
    before, after = (size - 1) // 2, size // 2
    window = _channel_mean(op, op.Mul(x, x), size, before, after)
    s = op.Add(op.scalar(real(node, "bias", 1.0), x), op.Mul(window, op.scalar(alpha, x)))
    power = op.Pow(s, op.scalar(-beta, x))
    inner = op.Div(op.Mul(op.Mul(dy, x), power), s)
    back = _channel_mean(op, inner, size, after, before)
    rest = op.Mul(op.Mul(x, back), op.scalar(2 * alpha * beta, x))
    return [op.Sub(op.Mul(dy, power), rest)]


def _channel_mean(op: Ops, x: ir.Value, size: int, before: int, after: int) -> ir.Value:
    """The sum over a window of channels, divided by its size."""
    planes = op.folded(op.unsqueeze(x, [1]), [0, 0, 0, -1])
    mean = op.AveragePool(
        planes, kernel_shape=[size, 1], pads=[before, 0, after, 0], count_include_pad=1
    )
    return op.reshape_like(mean, x)
