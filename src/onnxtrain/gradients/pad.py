"""Gradient of Pad."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxtrain.gradients.gather import add_at
from onnxtrain.gradients.known import inputs_of, ints_of, operands
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.builder import END, Ops
from onnxtrain.types import MS


@gradient("Pad", until=10)
def pad_by_attributes(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The same with the padding as an attribute."""
    (x,) = operands(node)
    pads = attribute(node, "pads", None) or attribute(node, "paddings", ())
    mode = attribute(node, "mode", "constant")
    if mode == "constant":
        return [op.Pad(dy, pads=[-n for n in pads])]
    sizes = ints_of(op.shape(x))
    if sizes is None:
        for axis, widths in enumerate(zip(*np.reshape(pads, (2, -1)).tolist(), strict=True)):
            if any(widths):
                dy = _without_borders(op, dy, axis, len(pads) // 2, widths, mode)
        return [dy]
    places = np.arange(math.prod(sizes)).reshape(sizes)
    pairs = list(zip(pads[: len(sizes)], pads[len(sizes) :], strict=True))
    padded = np.pad(places, pairs, "edge" if mode == "edge" else "reflect")
    return [add_at(op, dy, op.const(padded), x)]


def _without_borders(
    op: Ops, dy: ir.Value, axis: int, rank: int, widths: tuple[int, int], mode: str
) -> ir.Value:
    """Undo the padding of one axis of any size: borders are added to what they were copied from."""
    before, after = widths
    cut = np.zeros((2, rank), np.int64)
    cut[:, axis] = -before, -after
    dx: ir.Value = op.Pad(dy, pads=cut.ravel().tolist())
    shape = op.shape(dx)
    parts = []
    if before > 0:
        start, end = (0, 1) if mode == "edge" else (1, 1 + before)
        parts.append((dy, before, start, end))
    if after > 0:
        last = op.slice(dy, -after, axis=axis)
        start, end = (-1, END) if mode == "edge" else (-1 - after, -1)
        parts.append((last, after, start, end))
    for source, width, start, end in parts:
        border = op.Gather(source, op.ints(range(width)[::-1]), axis=axis)
        if mode == "edge":
            border = op.reduce_sum(border, [axis], keepdims=True)
        place = [op.ints([number]) for number in (start, end, axis)]
        dx = op.Add(dx, op.SliceGrad(border, shape, *place, _domain=MS))
    return dx


@gradient("Pad", since=11)
def pad(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Constant padding is cut off again; what other modes copied is added where it came from."""
    _, pads, _, _ = inputs_of(node, 4)
    assert pads is not None
    return padded_by(op, node, dy, pads)


def padded_by(op: Ops, node: ir.Node, dy: ir.Value, pads: ir.Value) -> list[Grad]:
    """The same, with the widths of the borders in one axis."""
    x, _, value, axes = inputs_of(node, 4)
    assert x is not None
    mode = attribute(node, "mode", "constant")
    if mode != "constant":
        places = op.Reshape(op.Range(op.const(0), op.Size(x), op.const(1)), op.shape(x))
        padded = op.Pad(places, pads, None, axes, mode=mode)
        return [add_at(op, dy, padded, x), None, None, None][: len(node.inputs)]
    known = ints_of(pads)
    back = op.Neg(pads) if known is None else op.ints([-n for n in known])
    dx = op.Pad(dy, back, None, axes)
    return [dx, None, _value(op, value, dy, dx), None][: len(node.inputs)]


def _value(op: Ops, value: Grad, dy: ir.Value, dx: ir.Value) -> Grad:
    """The constant gets all of dy that x does not."""
    if value is None:
        return None
    both = [op.reduce_sum(grad, None, keepdims=False) for grad in (dy, dx)]
    return op.reshape_like(op.Sub(both[0], both[1]), value)
