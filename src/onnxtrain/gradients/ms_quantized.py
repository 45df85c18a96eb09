"""Gradients through weights that are whole numbers: to what stays a real number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxtrain.errors import NoGradientError
from onnxtrain.gradients.chain import through
from onnxtrain.gradients.integer_products import steps, to_factors
from onnxtrain.gradients.known import inputs_of, need_rank
from onnxtrain.gradients.rules import Grad, Pair, attribute, forwarded, gradient, no_gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import FLOATS, MS

no_gradient("MatMulInteger16", "MulInteger", "QLinearConcat", "QLinearConv", domain=MS)
no_gradient("QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", domain=MS)
no_gradient("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearReduceMean", domain=MS)
no_gradient("QLinearSoftmax", "QLinearWhere", "QuantizeLinear", "ReduceSumInteger", domain=MS)


@gradient("MatMulNBits", domain=MS)
def matmul_nbits(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dA, and those of the scales, real zero points and the bias, in one operator."""
    a, b, scales, zero, groups, _ = inputs_of(node, 6)
    grads = op.MatMulNBitsGrad(
        dy, a, b, scales, zero, groups, **forwarded(node), _outputs=4, _domain=MS
    )
    da, d_scales, d_zero, d_bias = grads
    real_zero = d_zero if zero is not None and zero.dtype in FLOATS else None
    return [da, None, d_scales, real_zero, None, d_bias][: len(node.inputs)]


@gradient("GatherBlockQuantized", domain=MS)
def gather_block_quantized(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = step·scale at indices: dy·step summed over each block, then over equal indices."""
    data, indices, scales, zero = inputs_of(node, 4)
    assert data is not None and indices is not None and scales is not None
    rank = need_rank(data, "GatherBlockQuantized")
    gathered = attribute(node, "gather_axis", 0) % rank
    axis = attribute(node, "quantize_axis", 1) % rank
    if axis == gathered:
        raise NoGradientError(
            "no gradient of GatherBlockQuantized with the same gather_axis and quantize_axis, "
            f"node '{node.name}'"
        )
    ones = op.filled(1, shape_of=scales, like=scales)
    steps = op.GatherBlockQuantized(data, indices, ones, zero, **forwarded(node), _domain=MS)
    product = op.Mul(dy, steps)
    behind = axis if axis < gathered else axis + need_rank(indices, "GatherBlockQuantized") - 1
    summed = _block_sums(op, node, product, scales, axis, behind)
    grad = op.GatherGrad(op.shape(scales), indices, summed, axis=gathered, _domain=MS)
    return [None, None, grad, None][: len(node.inputs)]


def _block_sums(
    op: Ops, node: ir.Node, x: ir.Value, scales: ir.Value, axis: int, behind: int
) -> ir.Value:
    """x summed over each block of its axis ``behind``, which is ``axis`` of the scales."""
    sizes = op.Shape(x)
    length = op.Gather(sizes, op.const(behind), axis=0)
    block = op.const(attribute(node, "block_size", 128))
    places = op.Div(op.Range(op.const(0), length, op.const(1)), block)
    before = op.slice(sizes, 0, behind)
    after = op.slice(sizes, behind + 1)
    blocks = op.Gather(op.shape(scales), op.ints([axis]), axis=0)
    shape = op.Concat(before, blocks, after, axis=0)
    return op.GatherGrad(shape, places, x, axis=behind, _domain=MS)


@gradient("DynamicQuantizeMatMul", domain=MS)
def dynamic_quantize_matmul(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """That of a·(b - zero)·scale + bias: straight through the rounding of a."""
    a, b, scale, zero, bias = inputs_of(node, 5)

    def formula(op: Ops, a: ir.Value, scale: ir.Value, *bias: ir.Value) -> list[ir.Value]:
        y = op.MatMul(a, _real(op, b, zero, scale))
        return [op.Add(y, *bias) if bias else y]

    xs = [value for value in (a, scale, bias) if value is not None]
    found = [*through(op, formula, xs, [dy]), None]
    return [found[0], None, found[1], None, found[2]][: len(node.inputs)]


@gradient("DynamicQuantizeLSTM", domain=MS, all_outputs=True)
def dynamic_quantize_lstm(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """That of LSTM with real weights: straight through the rounding of x and h."""
    x, w, r, b, lengths, h0, c0, p, w_scale, w_zero, r_scale, r_zero = inputs_of(node, 12)
    optional = [value for value in (b, h0, c0, p) if value is not None]
    assert x is not None and w_scale is not None and r_scale is not None

    def formula(op: Ops, x: ir.Value, sw: ir.Value, sr: ir.Value, *more: ir.Value) -> list[Any]:
        rest = iter(more)
        given = [None if value is None else next(rest) for value in (b, h0, c0, p)]
        weights = [_per_gate(op, *one) for one in ((w, w_zero, sw), (r, r_zero, sr))]
        states = [x, *weights, given[0], lengths, *given[1:]]
        return list(op.LSTM(*states, **forwarded(node), _outputs=3))

    arrived = [*dys, None, None][:3]
    found = through(op, formula, [x, w_scale, r_scale, *optional], arrived)
    rest = iter(found[3:])
    d_b, d_h0, d_c0, d_p = (None if v is None else next(rest) for v in (b, h0, c0, p))
    grads = [found[0], None, None, d_b, None, d_h0, d_c0, d_p, found[1], None, found[2], None]
    return grads[: len(node.inputs)]


def _per_gate(op: Ops, x: Grad, zero: Grad, scale: ir.Value) -> ir.Value:
    """Real weights [directions, gates, inputs] from bytes [directions, inputs, gates]."""
    assert x is not None
    shape = op.Concat(op.slice(op.shape(x), 0, 1), op.ints([1, -1]), axis=0)
    sides = [None if value is None else op.Reshape(value, shape) for value in (zero, scale)]
    assert sides[1] is not None
    return op.Transpose(_real(op, x, sides[0], sides[1]), perm=[0, 2, 1])


@gradient("MatMulIntegerToFloat", domain=MS, captures=True)
def matmul_integer_to_float(
    op: Ops, node: ir.Node, dys: Sequence[Grad], wanted: Sequence[ir.Value] = ()
) -> list[Pair]:
    """Those of (a - zero)·(b - zero)·scales + bias, straight through the rounding of a and b."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = inputs_of(node, 7)
    assert a is not None and b is not None and a_scale is not None and b_scale is not None

    def formula(op: Ops, left: ir.Value, right: ir.Value, *more: ir.Value) -> list[ir.Value]:
        y = op.MatMul(op.Mul(left, more[0]), op.Mul(right, more[1]))
        return [op.Add(y, *more[2:]) if more[2:] else y]

    factors = steps(op, a, a_zero, a_scale), steps(op, b, b_zero, b_scale)
    xs = [value for value in (a_scale, b_scale, bias) if value is not None]
    grads = through(op, formula, [*factors, *xs], dys[:1])
    return [
        *((x, grad) for x, grad in zip(xs, grads[2:], strict=True) if grad is not None),
        *to_factors(op, node, grads[:2]),
    ]


@gradient("QGemm", domain=MS)
def qgemm(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = α·a'·b' + c in units of both scales, if y is a real number: that of the scales."""
    a, a_scale, a_zero, b, b_scale, b_zero, c = inputs_of(node, 7)

    def formula(op: Ops, sa: ir.Value, sb: ir.Value) -> list[ir.Value]:
        left, right = _real(op, a, a_zero, sa), _real(op, b, b_zero, sb)
        if attribute(node, "transA", 0):
            left = op.Transpose(left, perm=[1, 0])
        if attribute(node, "transB", 0):
            right = op.Transpose(_per_row(op, b, b_zero, sb), perm=[1, 0])
        y = op.MatMul(left, right)
        if c is not None:
            y = op.Add(y, op.Mul(op.Mul(op.cast(c, sa), sa), sb))
        return [op.Mul(y, op.scalar(attribute(node, "alpha", 1.0), y))]

    assert a_scale is not None and b_scale is not None
    found = through(op, formula, [a_scale, b_scale], [dy])
    return [None, found[0], None, None, found[1], *[None] * 4][: len(node.inputs)]


def _real(op: Ops, x: Grad, zero: Grad, scale: ir.Value) -> ir.Value:
    """(x - zero)·scale, each single or one per column."""
    assert x is not None
    return op.Mul(steps(op, x, zero, scale), scale)


def _per_row(op: Ops, x: Grad, zero: Grad, scale: ir.Value) -> ir.Value:
    """The same, one per row."""
    column = op.ints([-1, 1])
    rows = None if zero is None else op.Reshape(zero, column)
    return _real(op, x, rows, op.Reshape(scale, column))
