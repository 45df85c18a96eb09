"""Gradients of layer normalization and its relatives."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import (
    HALVES,
    axis_in,
    inputs_of,
    output_of,
    rank_of,
    real,
)
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.bindings import same_dim
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType


@gradient("LayerNormalization", all_outputs=True)
def layer_normalization(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """dX, dScale and dB in one operator; the statistics may have gradients of their own."""
    x, scale, bias = inputs_of(node, 3)
    assert x is not None and scale is not None
    stash = DataType(attribute(node, "stash_type", 1))
    mean, inverse = output_of(node, 1, "_mean", stash), output_of(node, 2, "_inv_std_dev", stash)
    dy, d_mean, d_inverse = [*dys, None, None][:3]
    grads: list[Grad] = [None, None, None]
    axis = attribute(node, "axis", -1)
    if dy is not None and not _inside(node, x, scale, bias):
        grads = pulled_back(op, node, [dy])
    elif dy is not None:
        wide = full_scale(op, scale, x, axis)
        dx, d_scale, d_bias = op.LayerNormalizationGrad(
            dy, x, wide, mean, inverse, **forwarded(node), _outputs=3, _domain=MS
        )
        grads = [dx, op.unbroadcast(d_scale, to=scale), op.unbroadcast(d_bias, to=bias or scale)]
    grads[0] = op.add(grads[0], _statistics(op, x, axis, (mean, d_mean), (inverse, d_inverse)))
    return grads[: len(node.inputs)]


def _statistics(
    op: Ops, x: ir.Value, axis: int, mean: tuple[ir.Value, Grad], inverse: tuple[ir.Value, Grad]
) -> Grad:
    """What reaches x through the mean (dm/n) and 1/deviation r (-r³(x - m)·dr/n)."""
    if mean[1] is None and inverse[1] is None:
        return None
    wide = op.cast(x, mean[0])
    parts: list[Grad] = [mean[1], None]
    if inverse[1] is not None:
        r = inverse[0]
        cube = op.Mul(r, op.Mul(r, r))
        parts[1] = op.Neg(op.Mul(op.Mul(cube, inverse[1]), op.Sub(wide, mean[0])))
    total = parts[0] if parts[1] is None else parts[1] if parts[0] is None else op.Add(*parts)
    count = op.ReduceProd(_normalized(op, x, axis), keepdims=0)
    share = op.Scale(total, count, scale_down=1, _domain=MS)
    return op.cast(op.expand(share, x), x)


def _normalized(op: Ops, x: ir.Value, axis: int) -> ir.Value:
    """The sizes from the axis on."""
    end = op.ints([2**62])
    return op.Slice(op.shape(x), op.ints([axis_in(x, axis)]), end)


def _axes_from(op: Ops, x: ir.Value, axis: int) -> list[int] | ir.Value:
    """An axis and those behind it."""
    rank = rank_of(x)
    if rank is not None:
        return list(range(axis_in(x, axis), rank))
    if axis < 0:
        return list(range(axis, 0))
    return op.Range(op.const(axis), op.Size(op.Shape(x)), op.const(1))


def full_scale(op: Ops, scale: ir.Value, x: ir.Value, axis: int) -> ir.Value:
    """The scale in the shape of what is normalized; usually it has it already."""
    rank, own = rank_of(x), rank_of(scale)
    if rank is not None and own is not None and scale.shape is not None and x.shape is not None:
        first = axis_in(x, axis)
        pairs = zip(scale.shape, x.shape[first:], strict=False)
        if own == rank - first and all(_fits(have, want) for have, want in pairs):
            return scale
    return op.Expand(scale, _normalized(op, x, axis))


def _inside(node: ir.Node, x: ir.Value, *parameters: Grad) -> bool:
    """Whether parameters vary along the normalized axes only, which gradient operators ask for."""
    rank = rank_of(x)
    if rank is None:
        return True
    most = rank - axis_in(x, attribute(node, "axis", -1))
    ranks = [rank_of(value) for value in parameters if value is not None]
    return all(own is None or own <= most for own in ranks)


def _fits(have: int | ir.SymbolicDim, want: int | ir.SymbolicDim) -> bool:
    """Whether a dimension is certainly not broadcast."""
    return same_dim(have, want) or (isinstance(have, int) and have != 1)


@gradient("SimplifiedLayerNormalization", all_outputs=True)
def simplified_layer_normalization(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """dX and dScale in one operator."""
    x, scale = inputs_of(node, 2)
    assert x is not None and scale is not None
    inverse = output_of(node, 1, "_inv_std_var", DataType(attribute(node, "stash_type", 1)))
    dy, d_inverse = [*dys, None][:2]
    grads: list[Grad] = [None, None]
    if dy is not None and not _inside(node, x, scale):
        grads = pulled_back(op, node, [dy])
    elif dy is not None:
        grads = _simplified(op, node, dy, x, scale, inverse)
    direct = _inverse_size(op, x, attribute(node, "axis", -1), inverse, d_inverse)
    return [op.add(grads[0], direct), grads[1]]


def _inverse_size(op: Ops, x: ir.Value, axis: int, inverse: ir.Value, d_inverse: Grad) -> Grad:
    """What reaches x through r = 1/√(mean(x²) + ε): -r³·x·dr/n."""
    if d_inverse is None:
        return None
    cube = op.Mul(inverse, op.Mul(inverse, inverse))
    moved = op.Neg(op.Mul(op.Mul(cube, d_inverse), op.cast(x, inverse)))
    count = op.ReduceProd(_normalized(op, x, axis), keepdims=0)
    return op.cast(op.Scale(moved, count, scale_down=1, _domain=MS), x)


def _simplified(
    op: Ops, node: ir.Node, dy: ir.Value, x: ir.Value, scale: ir.Value, inverse: ir.Value
) -> list[Grad]:
    axis = attribute(node, "axis", -1)
    wide = full_scale(op, scale, x, axis)
    dx, dscale = op.SimplifiedLayerNormalizationGrad(
        dy, x, wide, inverse, **forwarded(node), _outputs=2, _domain=MS
    )
    return [dx, op.unbroadcast(dscale, to=scale)]


@gradient("RMSNormalization")
def rms_normalization(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """As SimplifiedLayerNormalization, with 1/√(mean(x²) + ε) computed again."""
    x, scale = inputs_of(node, 2)
    assert x is not None and scale is not None
    if not _inside(node, x, scale):
        return pulled_back(op, node, [dy])
    wide = op.cast(x, DataType.FLOAT) if x.dtype in HALVES else x
    epsilon = op.scalar(real(node, "epsilon", 1e-5), wide)
    squares, axes = op.Mul(wide, wide), _axes_from(op, x, attribute(node, "axis", -1))
    variance = op.Add(op.reduce("ReduceMean", squares, axes), epsilon)
    return _simplified(op, node, dy, x, scale, op.Reciprocal(op.Sqrt(variance)))


@gradient("SkipLayerNormalization", domain=MS, all_outputs=True)
def skip_layer_normalization(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """LayerNormalization of s = input + skip + bias, all of which get the gradient of s."""
    x, skip, gamma, beta, bias = inputs_of(node, 5)
    assert x is not None and skip is not None and x.dtype is not None
    total = output_of(node, 3, "_sum", x.dtype, x.shape)
    mean = output_of(node, 1, "_mean", DataType.FLOAT)
    inverse = output_of(node, 2, "_inv_std_dev", DataType.FLOAT)
    dy, d_mean, d_inverse, d_total = [*dys, None, None, None][:4]
    d_total = op.add(d_total, _statistics(op, total, -1, (mean, d_mean), (inverse, d_inverse)))
    d_gamma = d_beta = None
    if dy is not None:
        dx, d_gamma, d_beta = op.LayerNormalizationGrad(
            dy, total, gamma, mean, inverse, **_last_axis(node), _outputs=3, _domain=MS
        )
        d_total = op.add(dx, d_total)
    assert d_total is not None
    d_bias = None if bias is None else op.unbroadcast(d_total, to=bias)
    found = [d_total, op.unbroadcast(d_total, to=skip), d_gamma, d_beta if beta else None, d_bias]
    return found[: len(node.inputs)]


def _last_axis(node: ir.Node) -> dict[str, float]:
    """Attributes of a normalization over the last axis, with the default of the fused ones."""
    return {"axis": -1, "epsilon": real(node, "epsilon", 1e-12)}


@gradient("SkipSimplifiedLayerNormalization", domain=MS, all_outputs=True)
def skip_simplified(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """SimplifiedLayerNormalization of s = input + skip + bias."""
    x, skip, gamma, bias = inputs_of(node, 4)
    assert x is not None and skip is not None and x.dtype is not None
    total = output_of(node, 3, "_sum", x.dtype, x.shape)
    inverse = output_of(node, 2, "_inv_std_dev", DataType.FLOAT)
    dy, d_mean, d_inverse, d_total = [*dys, None, None, None][:4]
    moved = _statistics(op, total, -1, (inverse, d_mean), (inverse, None))
    d_total = op.add(d_total, moved, _inverse_size(op, total, -1, inverse, d_inverse))
    d_gamma = None
    if dy is not None:
        dx, d_gamma = op.SimplifiedLayerNormalizationGrad(
            dy, total, gamma, inverse, **_last_axis(node), _outputs=2, _domain=MS
        )
        d_total = op.add(dx, d_total)
    assert d_total is not None
    d_bias = None if bias is None else op.unbroadcast(d_total, to=bias)
    return [d_total, op.unbroadcast(d_total, to=skip), d_gamma, d_bias][: len(node.inputs)]
