"""Gradients of quantization: straight through the rounding, to what is not clipped.

Rounding is constant almost everywhere, so its true gradient would stop all training. It is taken
for the identity instead: a value gets dy where it was not clipped to the limits of the whole
numbers. A scale then gets what is left over: the rounding error round(x/s) - x/s where nothing
was clipped, and the limit itself where something was (learned step sizes). Zero points in whole
numbers have no gradient. Products of whole numbers have one if they are made real by a Cast
(``integer_products``); those that are rounded again (QLinearConv, ...) have none.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import onnx_ir as ir

from onnxtrain.gradients.known import dim_of, inputs_of, need_rank, operands, output_of
from onnxtrain.gradients.reduction import nonzero
from onnxtrain.gradients.rules import Grad, Pair, attribute, forwarded, gradient
from onnxtrain.gradients.straight_through import quantizer_of
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType


@gradient("FakeQuant", domain=MS)
def fake_quant(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy where nothing was clipped; Σ dy·(y - x·mask)/s for the scale, -s·Σ dy·(1 - mask) for z."""
    x, scale, zero = operands(node)
    y = node.outputs[0]
    mask = output_of(node, 1, "_mask", DataType.BOOL, x.shape)
    dx = op.FakeQuantGrad(dy, mask, _domain=MS)
    passed = op.Sub(op.Mul(dy, y), op.Mul(dx, x))
    d_scale = op.Div(op.reduce_sum(passed, None, keepdims=False), scale)
    clipped = op.reduce_sum(op.Sub(dx, dy), None, keepdims=False)
    return [dx, op.reshape_like(d_scale, scale), op.reshape_like(op.Mul(clipped, scale), zero)]


@gradient("DequantizeLinear", captures=True)
@gradient("DequantizeLinear", domain=MS, captures=True)
def dequantize_linear(
    op: Ops, node: ir.Node, dys: Sequence[Grad], wanted: Sequence[ir.Value] = ()
) -> list[Pair]:
    """y = (q - zero)·scale: (q - zero)·dy for the scale, and what the quantizer of q gets."""
    q, scale, zero = inputs_of(node, 3)
    dy = dys[0]
    assert q is not None and scale is not None and dy is not None
    ones = op.filled(1, shape_of=scale, like=scale)
    steps = op.DequantizeLinear(q, ones, zero, **forwarded(node), _domain=node.domain)
    product = op.cast(op.Mul(dy, op.cast(steps, dy)), scale)
    pairs = [(scale, _to_scale(op, node, product, q, scale))]
    before = quantizer_of(node)
    if before is not None:
        d_steps = op.Mul(op.cast(dy, scale), _aligned(op, node, scale, q))
        pairs += quantized(op, before, d_steps)
    return pairs


def quantized(op: Ops, node: ir.Node, d_steps: ir.Value) -> list[Pair]:
    """What reaches x and the scale s through q = clip(round(x/s) + zero): dq/s and -dq·x/s²."""
    if node.op_type == "DynamicQuantizeLinear":  # its range is that of x, nothing is clipped
        x, scale = operands(node)[0], node.outputs[1]
        ratio = op.Div(x, scale)
    else:
        x, scale, zero = inputs_of(node, 3)  # type: ignore[assignment]
        assert x is not None and scale is not None
        ratio = op.Div(op.cast(x, scale), _aligned(op, node, scale, x))
        inside = _inside(op, node, ratio, zero)
        d_steps = op.where(inside, d_steps, op.scalar(0, d_steps))
        ratio = op.where(inside, ratio, op.scalar(0, ratio))  # it may be infinite
    d_steps = op.cast(d_steps, scale)
    d_x = op.Div(d_steps, _aligned(op, node, scale, x))
    d_scale = _to_scale(op, node, op.Neg(op.Mul(d_x, ratio)), x, scale)
    return [(x, op.cast(d_x, x)), (scale, d_scale)]


def _inside(op: Ops, node: ir.Node, ratio: ir.Value, zero: Grad) -> ir.Value:
    """Where the rounded value is between the limits of the type."""
    dtype = node.outputs[0].dtype
    assert dtype is not None
    rounded = ratio if dtype.is_floating_point() else _rounded(op, ratio)
    if zero is not None:
        rounded = op.Add(rounded, _aligned(op, node, _number(op, node, zero, ratio), ratio))
    info = (ml_dtypes.finfo if dtype.is_floating_point() else ml_dtypes.iinfo)(dtype.numpy())
    low, high = (op.scalar(float(limit), ratio) for limit in (info.min, info.max))
    return op.Not(op.Or(op.Less(rounded, low), op.Greater(rounded, high)))


def _rounded(op: Ops, ratio: ir.Value) -> ir.Value:
    """The nearest whole numbers; opset 10 rounds only what is so large that fractions are lost."""
    if op.opset >= 11:
        return op.Round(ratio)
    large = op.scalar(1.5 * 2**23, ratio)
    return op.Sub(op.Add(ratio, large), large)


def _number(op: Ops, node: ir.Node, zero: ir.Value, like: ir.Value) -> ir.Value:
    """A zero point as a real number; com.microsoft has types that Cast takes only in opset 21."""
    if node.domain != MS:
        return op.cast(zero, like)
    return op.DequantizeLinear(zero, op.scalar(1, like), _domain=MS)


def _axis(node: ir.Node) -> int:
    """The axis along which scales differ."""
    axis: int = attribute(node, "axis", 1)
    return axis


def _one_scale(scale: ir.Value) -> bool:
    rank = need_rank(scale, "DequantizeLinear")
    return rank == 0 or (rank == 1 and dim_of(scale, 0) == 1)


def _aligned(op: Ops, node: ir.Node, values: ir.Value, x: ir.Value) -> ir.Value:
    """Scales (or zero points) in a shape that broadcasts against x."""
    if _one_scale(values):
        return values
    rank = need_rank(x, "DequantizeLinear")
    axis = _axis(node) % rank
    if need_rank(values, "DequantizeLinear") == 1:
        return op.unsqueeze(values, list(range(1, rank - axis)))
    return op.Gather(values, _blocks(op, node, x, axis), axis=axis)


def _to_scale(op: Ops, node: ir.Node, product: ir.Value, x: ir.Value, scale: ir.Value) -> ir.Value:
    """Summed over what each element of the scale stands for: all, an axis, or blocks of one."""
    if _one_scale(scale):
        return op.reshape_like(op.reduce_sum(product, None, keepdims=False), scale)
    rank = need_rank(x, "DequantizeLinear")
    axis = _axis(node) % rank
    if need_rank(scale, "DequantizeLinear") == 1:
        others = [i for i in range(rank) if i != axis]
        summed = op.reduce_sum(product, others, keepdims=False)
        return summed if dim_of(scale, 0) is not None else op.unbroadcast(summed, to=scale)
    places = _blocks(op, node, x, axis)
    return op.GatherGrad(op.shape(scale), places, product, axis=axis, _domain=MS)


def _blocks(op: Ops, node: ir.Node, x: ir.Value, axis: int) -> ir.Value:
    """The number of the block that each index of an axis belongs to."""
    size = op.Gather(op.shape(x), op.const(axis), axis=0)
    block = op.const(attribute(node, "block_size", 1))
    return op.Div(op.Range(op.const(0), size, op.const(1)), block)


@gradient("DynamicQuantizeLinear", all_outputs=True)
def dynamic_quantize_linear(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """scale = (max(x, 0) - min(x, 0))/255: dy/255 to the largest and -dy/255 to the smallest x.

    Values that tie share evenly; 0 is always in the range and has no gradient.
    """
    (x,) = operands(node)
    d_scale = [*dys, None][1]
    if d_scale is None:
        return [None]
    share = op.Mul(d_scale, op.scalar(1 / 255, x))
    ends = []
    for name, sign in (("ReduceMax", 1), ("ReduceMin", -1)):
        end = op.reduce(name, x, None, keepdims=False)
        beyond = op.cast(op.Greater(op.Mul(end, op.scalar(sign, x)), op.scalar(0, x)), x)
        mask = op.Mul(op.cast(op.equal(x, end), x), op.Mul(beyond, op.scalar(sign, x)))
        count = op.Abs(op.reduce_sum(mask, None, keepdims=False))
        ends.append(op.Div(mask, nonzero(op, count)))
    return [op.Mul(share, op.Sum(*ends))]
