"""Gradients through products of whole numbers, to the real values that were quantized for them.

A dynamically quantized layer is DynamicQuantizeLinear, MatMulInteger (or ConvInteger), Cast and a
product with the scales. The Cast makes real numbers again, so what arrives there is the gradient of
the product of steps q - zero, and goes straight through the rounding to what was quantized.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.chain import through
from onnxtrain.gradients.known import inputs_of, need_rank
from onnxtrain.gradients.quantization import quantized
from onnxtrain.gradients.rules import Grad, Pair, forwarded, gradient
from onnxtrain.gradients.straight_through import factor_quantizers, product_of
from onnxtrain.graph.builder import Ops
from onnxtrain.types import FLOATS


@gradient("Cast", captures=True)
def cast(
    op: Ops, node: ir.Node, dys: Sequence[Grad], wanted: Sequence[ir.Value] = ()
) -> list[Pair]:
    """dy in the element type of x; behind a product of whole numbers what its factors get."""
    x, dy = node.inputs[0], dys[0]
    assert x is not None and dy is not None
    product = product_of(node)
    if product is None:
        return [(x, op.cast(dy, x))]
    if dy.dtype not in FLOATS or not any(factor_quantizers(product)):
        return []
    return _multiplied(op, product, dy)


def _multiplied(op: Ops, node: ir.Node, dy: ir.Value) -> list[Pair]:
    """What reaches the real values behind the factors of ConvInteger or MatMulInteger."""
    a, b, a_zero, b_zero = inputs_of(node, 4)
    is_matmul = node.op_type == "MatMulInteger"
    assert a is not None and b is not None

    def formula(op: Ops, left: ir.Value, right: ir.Value) -> list[ir.Value]:
        if is_matmul:
            return [op.MatMul(left, right)]
        return [op.Conv(left, right, **forwarded(node))]

    left = steps(op, a, a_zero, dy, 1 if is_matmul else 0)
    right = steps(op, b, b_zero, dy, 0 if is_matmul else need_rank(b, "ConvInteger") - 1)
    return to_factors(op, node, through(op, formula, [left, right], [dy]))


def steps(op: Ops, x: ir.Value, zero: Grad, like: ir.Value, behind: int = 0) -> ir.Value:
    """x - zero as a real number; zero points that are a list count an axis with others behind."""
    real = op.cast(x, like)
    if zero is None:
        return real
    shift = op.cast(zero, like)
    if behind and need_rank(zero, "MatMulInteger") == 1:
        shift = op.unsqueeze(shift, list(range(1, behind + 1)))
    return op.Sub(real, shift)


def to_factors(op: Ops, node: ir.Node, d_steps: Sequence[Grad]) -> list[Pair]:
    """What reaches the real values whose steps are the factors of a product."""
    pairs: list[Pair] = []
    for before, grad in zip(factor_quantizers(node), d_steps, strict=True):
        if before is not None and grad is not None:
            pairs += quantized(op, before, grad)
    return pairs
