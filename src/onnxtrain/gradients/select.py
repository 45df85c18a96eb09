"""Gradients of operators that pick one of several values: Where, Clip, Max, Min."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.known import inputs_of, number_of, operands
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.torch_export.traced import is_clamp, is_flat_at_bounds


@gradient("Where")
def where(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy to the operand that was picked, 0 to the other; each summed back to its shape."""
    condition, a, b = operands(node)
    zero = op.scalar(0, dy)
    picked = op.where(condition, dy, zero), op.where(condition, zero, dy)
    return [None, op.unbroadcast(picked[0], to=a), op.unbroadcast(picked[1], to=b)]


@gradient("Max", "Min")
def extreme(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy to the largest (smallest) operand; those that tie share it evenly, unless torch clamps."""
    xs = operands(node)
    if len(xs) == 1:
        return [dy]
    if len(xs) == 2 and is_clamp(node):
        here, zero = op.equal(xs[0], node.outputs[0]), op.scalar(0, dy)
        grads = op.where(here, dy, zero), op.where(here, zero, dy)
        return [op.unbroadcast(grad, to=x) for grad, x in zip(grads, xs, strict=True)]
    masks = [op.cast(op.equal(x, node.outputs[0]), dy) for x in xs]
    share = op.Div(dy, op.Sum(*masks))
    return [op.unbroadcast(op.Mul(share, m), to=x) for x, m in zip(xs, masks, strict=True)]


@gradient("Clip", until=10)
def clip_by_attributes(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy where min ≤ x ≤ max, both being attributes."""
    (x,) = operands(node)
    low, high = attribute(node, "min", None), attribute(node, "max", None)
    bounds = [None if bound is None else op.scalar(bound, x) for bound in (low, high)]
    below, above = _outside(op, x, bounds[0], bounds[1])
    return [_inside(op, below, above, dy)]


@gradient("Clip", since=11)
def clip(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy to x where min ≤ x ≤ max, to min where x is below, to max where it is above.

    Torch's Hardtanh and ReLU6 have none at the bounds, which ReLU6 reaches wherever x is 0.
    """
    x, low, high = inputs_of(node, 3)
    assert x is not None
    below, above = _outside(op, x, low, high)
    if is_flat_at_bounds(node):
        below = None if low is None else op.LessOrEqual(x, low)
        above = None if high is None else op.GreaterOrEqual(x, high)
    grads: list[Grad] = [_inside(op, below, above, dy), None, None]
    zero = op.scalar(0, x)
    if low is not None and below is not None:
        taken = below if above is None else op.And(below, op.Not(above))
        grads[1] = op.unbroadcast(op.where(taken, dy, zero), to=low)
    if high is not None and above is not None:
        grads[2] = op.unbroadcast(op.where(above, dy, zero), to=high)
    return grads[: len(node.inputs)]


def _outside(op: Ops, x: ir.Value, low: Grad, high: Grad) -> tuple[Grad, Grad]:
    """Where x is below min, and where the result is max; max wins if the bounds are crossed."""
    below = None if low is None else op.Less(x, low)
    above = None if high is None else op.Greater(x, high)
    if low is not None and high is not None and not _are_in_order(low, high):
        above = op.Or(above, op.Greater(low, high))
    return below, above


def _are_in_order(low: ir.Value, high: ir.Value) -> bool:
    """Whether bounds are known numbers that are not crossed."""
    least, most = number_of(low), number_of(high)
    return least is not None and most is not None and least <= most


def _inside(op: Ops, below: Grad, above: Grad, dy: ir.Value) -> ir.Value:
    if below is not None and above is not None:
        below = op.Or(below, above)
    outside = above if below is None else below
    return dy if outside is None else op.where(outside, op.scalar(0, dy), dy)
