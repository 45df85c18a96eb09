"""Gradients of the Reduce operators; ties of a maximum or minimum share the gradient evenly."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxtrain.gradients.known import axes_of, axis_in, ints_of, to_first
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS

_MAX_OF_INTS = 12
"""The first opset whose Max takes whole numbers."""


@dataclasses.dataclass(frozen=True)
class _Reduced:
    """A node that reduces x to y.

    Attributes:
        axes: Axes that were reduced; None for all of them, a value if only a run can tell.
        keepdims: Whether they stayed as dimensions of size 1.
        noop: Whether no axes mean none instead of all, should a run find that there are none.
    """

    op: Ops
    x: ir.Value
    y: ir.Value
    axes: Sequence[int] | ir.Value | None
    keepdims: bool
    noop: bool

    @classmethod
    def of(cls, op: Ops, node: ir.Node) -> _Reduced:
        axes = axes_of(node)
        keepdims = bool(attribute(node, "keepdims", 1))
        noop = bool(attribute(node, "noop_with_empty_axes", 0))
        if not isinstance(axes, ir.Value) and not axes:
            axes = [] if noop else None
        x = node.inputs[0]
        assert x is not None
        if axes is not None and not isinstance(axes, ir.Value):
            axes = sorted({axis_in(x, axis) for axis in axes})
        return cls(op, x, node.outputs[0], axes, keepdims, noop)

    def fit(self, value: ir.Value) -> ir.Value:
        """A value with the shape of y in a shape that broadcasts to x."""
        if self.keepdims or self.axes is None:
            return value
        if not isinstance(self.axes, ir.Value) and not self.axes:
            return value
        return self.op.unsqueeze(value, self.axes)

    def again(self, op_type: str, value: ir.Value) -> ir.Value:
        """Another reduction over the same axes, in a shape that broadcasts to x."""
        if not isinstance(self.axes, ir.Value):
            return self.op.reduce(op_type, value, self.axes)
        emit = self.op.__getattr__(op_type)
        return emit(value, self.axes, keepdims=1, noop_with_empty_axes=int(self.noop))

    def count(self) -> ir.Value:
        """How many elements each element of y was made from."""
        op, x = self.op, self.x
        if isinstance(self.axes, ir.Value):
            ratio = size_ratio(x.shape, self.y.shape)
            if ratio is not None:
                return op.const(ratio)
            return op.Div(op.Size(x), at_least_one(op, op.Size(self.y)))
        return count_along(op, x, self.axes)


def size_ratio(x: ir.Shape | None, y: ir.Shape | None) -> int | None:
    """How many times as many elements one shape has as another, if that can be told."""
    if x is None or y is None:
        return None
    sizes = [math.prod(dim for dim in shape if isinstance(dim, int)) for shape in (x, y)]
    names = [sorted(str(d) for d in shape if not isinstance(d, int)) for shape in (x, y)]
    if names[0] != names[1] or "None" in names[0] or not sizes[1]:
        return None
    return sizes[0] // sizes[1]


def count_along(op: Ops, x: ir.Value, axes: Sequence[int] | None) -> ir.Value:
    """The product of the sizes of axes (None: of all)."""
    if x.shape is not None:
        dims = [x.shape[axis] for axis in (range(len(x.shape)) if axes is None else axes)]
        sizes = [dim for dim in dims if isinstance(dim, int)]
        if len(sizes) == len(dims):
            return op.const(math.prod(sizes))
    if axes is None:
        return op.Size(x)
    return op.ReduceProd(op.Gather(op.Shape(x), op.ints(axes), axis=0), keepdims=0)


def at_least_one(op: Ops, count: ir.Value) -> ir.Value:
    """A number of elements to divide by; with none there is nothing that is divided."""
    known = ints_of(count)
    if known is not None:
        return op.const(max(1, known[0]))
    return op.Max(count, op.const(1)) if op.opset >= _MAX_OF_INTS else count


@gradient("ReduceSum")
@gradient("ReduceSumTraining", domain=MS)
def reduce_sum(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy for every element."""
    of = _Reduced.of(op, node)
    return to_first(node, op.expand(of.fit(dy), of.x))


@gradient("ReduceMean")
def reduce_mean(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy/n for every element."""
    of = _Reduced.of(op, node)
    share = op.Scale(of.fit(dy), at_least_one(op, of.count()), scale_down=1, _domain=MS)
    return to_first(node, op.expand(share, of.x))


@gradient("ReduceL1")
def reduce_l1(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """sign(x)·dy."""
    of = _Reduced.of(op, node)
    return to_first(node, op.Mul(op.sign(of.x), of.fit(dy)))


@gradient("ReduceL2")
def reduce_l2(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """x·dy/y, 0 where y is 0."""
    of = _Reduced.of(op, node)
    return to_first(node, op.Mul(of.x, of.fit(op.Div(dy, nonzero(op, of.y)))))


def nonzero(op: Ops, y: ir.Value) -> ir.Value:
    """The value with 1 in place of 0, to divide by."""
    return op.where(op.equal(y, op.scalar(0, y)), op.scalar(1, y), y)


@gradient("ReduceSumSquare")
def reduce_sum_square(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """2x·dy."""
    of = _Reduced.of(op, node)
    return to_first(node, op.Mul(of.x, of.fit(op.Mul(dy, op.scalar(2, dy)))))


@gradient("ReduceLogSum")
def reduce_log_sum(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy/exp(y) for every element."""
    of = _Reduced.of(op, node)
    return to_first(node, op.expand(of.fit(op.Div(dy, op.Exp(of.y))), of.x))


@gradient("ReduceLogSumExp")
def reduce_log_sum_exp(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """exp(x - y)·dy."""
    of = _Reduced.of(op, node)
    return to_first(node, op.Mul(op.Exp(op.Sub(of.x, of.fit(of.y))), of.fit(dy)))


@gradient("ReduceMax", "ReduceMin")
def reduce_extreme(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy to the largest (smallest) element."""
    of = _Reduced.of(op, node)
    mask = op.cast(op.equal(of.x, of.fit(of.y)), dy)
    return to_first(node, op.Mul(mask, op.Div(of.fit(dy), of.again("ReduceSum", mask))))


@gradient("ReduceProd")
def reduce_prod(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy times the product of all other elements.

    The product of all is divided by the element itself, with zeros left out of it.
    """
    of = _Reduced.of(op, node)
    safe = nonzero(op, of.x)
    product = op.Div(of.again("ReduceProd", safe), safe)
    others = other_zeros(op, of.x, lambda value: of.again("ReduceSum", value), product)
    return to_first(node, op.Mul(others, of.fit(dy)))


def other_zeros(
    op: Ops, x: ir.Value, total: Callable[[ir.Value], ir.Value], product: ir.Value
) -> ir.Value:
    """Products of all factors but one, from those that leave out every factor that is 0.

    One or two zeros among the others are factors again, so that they have derivatives: their
    product is their sum, or half of what the square of their sum has more than their squares. With
    three of them the product is 0, and so are its first two derivatives.

    Args:
        op: Where nodes are emitted.
        x: The factors.
        total: Sums values over the factors of each product, for each factor.
        product: For each factor, the product of the others that are not 0.
    """
    zero, one = op.scalar(0, x), op.scalar(1, x)
    is_zero = op.equal(x, zero)
    here, zeros = op.cast(is_zero, x), op.where(is_zero, x, zero)
    count = op.Sub(total(here), here)
    first = op.Sub(total(zeros), zeros)
    squares = op.Mul(zeros, zeros)
    both = op.Sub(op.Mul(first, first), op.Sub(total(squares), squares))
    with_two = op.Mul(product, op.Mul(both, op.scalar(0.5, x)))
    found = op.where(op.equal(count, op.scalar(2, x)), with_two, zero)
    found = op.where(op.equal(count, one), op.Mul(product, first), found)
    return op.where(op.equal(count, zero), product, found)
