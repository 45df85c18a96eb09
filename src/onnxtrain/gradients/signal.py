"""Gradients of Fourier transforms: transforms in the other direction."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxtrain.gradients.chain import through
from onnxtrain.gradients.known import dim_of, inputs_of
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType


@dataclasses.dataclass(frozen=True)
class _Transform:
    """Transforms along one axis, which is an attribute before opset 20 and an input since."""

    op: Ops
    axis: int | ir.Value

    def place(self) -> ir.Value:
        """The axis as a vector of one."""
        if isinstance(self.axis, int):
            return self.op.ints([self.axis])
        return self.op.cast(self.op.Reshape(self.axis, self.op.ints([1])), DataType.INT64)

    def size(self, x: ir.Value) -> ir.Value:
        """How long the axis is."""
        found = self.op.Gather(self.op.shape(x), self.place(), axis=0)
        return self.op.squeeze(found, [0])

    def __call__(self, x: ir.Value, length: ir.Value, inverse: int, onesided: int) -> ir.Value:
        op = self.op
        if op.opset < 20:
            return op.DFT(x, length, axis=self.axis, inverse=inverse, onesided=onesided)
        place = op.squeeze(self.place(), [0])
        return op.DFT(x, length, place, inverse=inverse, onesided=onesided)

    def fitted(self, grad: ir.Value, x: ir.Value, length: ir.Value) -> ir.Value:
        """The gradient of x, of which ``length`` elements were used (and zeros behind its end)."""
        op, begin, axes = self.op, self.op.ints([0]), self.place()
        used = op.Reshape(length, op.ints([1]))
        kept = op.Slice(grad, begin, op.unsqueeze(self.size(x), [0]), axes)
        return op.SliceGrad(kept, op.shape(x), begin, used, axes, _domain=MS)


def _components(op: Ops, grad: ir.Value, x: ir.Value) -> ir.Value:
    """As many of the gradient's two components as x has: 1 of real numbers, 2 of complex ones."""
    known = dim_of(x, -1)
    if known == 2:
        return grad
    last = op.ints([-1])
    end = op.Gather(op.shape(x), last, axis=0) if known is None else op.ints([known])
    return op.Slice(grad, op.ints([0]), end, last)


@gradient("DFT")
def dft(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = F·x, so dx = conj(F)ᵀ·dy: N times the inverse transform, or the N-th part of F."""
    x, length, axis = inputs_of(node, 3)
    assert x is not None
    along = _Transform(op, attribute(node, "axis", 1 if op.opset < 20 else -2))
    if axis is not None:
        along = _Transform(op, axis)
    inverse, onesided = attribute(node, "inverse", 0), attribute(node, "onesided", 0)
    if inverse and onesided:
        return [_half(op, along, x, dy), None, None][: len(node.inputs)]
    count = along.size(x) if length is None else op.cast(length, DataType.INT64)
    full = along(dy, count, inverse=1 - inverse, onesided=0)
    grad = _components(op, op.Scale(full, count, scale_down=inverse, _domain=MS), x)
    if length is not None:
        grad = along.fitted(grad, x, count)
    return [grad, None, None][: len(node.inputs)]


def _half(op: Ops, along: _Transform, x: ir.Value, dy: ir.Value) -> ir.Value:
    """y is real and x half of its spectrum: all but the ends of that half count twice.

    dx = w·F·dy/N, with w = 1 for the frequencies 0 and N/2 and 2 for those between.
    """
    count = along.size(dy)
    spectrum = op.Scale(along(dy, count, 0, 1), count, scale_down=1, _domain=MS)
    bins = op.Range(op.const(0), along.size(spectrum), op.const(1))
    zero, two = op.const(0), op.const(2)
    ends = op.Or(op.Equal(bins, zero), op.Equal(op.Mul(bins, two), count))
    weights = op.where(ends, op.scalar(1, dy), op.scalar(2, dy))
    ones = op.Expand(op.ints([1]), op.Shape(op.Shape(spectrum)))
    sizes = op.ScatterElements(ones, along.place(), op.ints([-1]))
    weighted = op.Mul(spectrum, op.Reshape(weights, sizes))
    return along.fitted(weighted, x, along.size(weighted))


@gradient("STFT")
def stft(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """A transform of frames that are cut out of the signal and weighted by the window."""
    signal, step, window, length = inputs_of(node, 4)
    assert signal is not None and step is not None
    spectrum = node.outputs[0]
    onesided = attribute(node, "onesided", 1)
    count = _frame_length(op, signal, window, length)

    def formula(op: Ops, signal: ir.Value, *weights: ir.Value) -> list[ir.Value]:
        if signal.shape is None or len(signal.shape) < 3:  # a matrix has real signals
            signal = op.Reshape(signal, op.ints([0, 0, -1]))
        zero, one = op.const(0), op.const(1)
        frames = op.Gather(op.shape(spectrum), op.const(1), axis=0)
        starts = op.Mul(op.Range(zero, frames, one), op.cast(step, DataType.INT64))
        inside = op.Range(zero, count, one)
        places = op.Add(op.unsqueeze(starts, [1]), op.unsqueeze(inside, [0]))
        cut = op.Gather(signal, places, axis=1)
        if weights:
            cut = op.Mul(cut, op.unsqueeze(weights[0], [1]))
        return [_Transform(op, 2)(cut, count, 0, onesided)]

    leaves = [signal] if window is None else [signal, window]
    found = through(op, formula, leaves, [dy])
    return [found[0], None, found[1] if window is not None else None, None][: len(node.inputs)]


def _frame_length(op: Ops, signal: ir.Value, window: Grad, length: Grad) -> ir.Value:
    """How long a frame is: as said, as the window, or as the signal."""
    if length is not None:
        return op.cast(op.Reshape(length, op.ints([])), DataType.INT64)
    if window is not None:
        return op.Size(window)
    return op.Gather(op.shape(signal), op.const(1), axis=0)
