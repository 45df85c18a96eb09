"""Gradients of operators that sample images and regions of images."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.known import inputs_of
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops


@gradient("DeformConv", "GridSample", "MaxRoiPool", "RoiAlign")
def sampled(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Run again and differentiated by torch, in the image and in the places that are sampled.

    Between two pixels the slope is that of the interpolation; on a pixel, where it has a kink, that
    of the side with the larger coordinate. Samples taken from the nearest pixel and the borders of
    pooled regions are constant in their coordinates. Pixels that tie for a maximum share evenly.
    """
    return pulled_back(op, node, [dy])


@gradient("MaxUnpool")
def max_unpool(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy at the place that each element was put to; those with a place of -1 were put nowhere.

    Places count in the image that was pooled, which lies in the first corner of a larger output.
    """
    x, places, size = inputs_of(node, 3)
    assert x is not None
    if size is not None and op.opset < 11:  # where Pad cannot compute its sizes
        return pulled_back(op, node, [dy])
    if size is not None:
        dy = _fitted(op, node, x, dy)
    assert places is not None
    picked = op.Gather(op.Reshape(dy, op.ints([-1])), places, axis=0)
    picked = op.where(op.equal(places, op.const(-1)), op.scalar(0, dy), picked)
    return [picked, None, None][: len(node.inputs)]


def _fitted(op: Ops, node: ir.Node, x: ir.Value, dy: ir.Value) -> ir.Value:
    """dy cut, or filled with zeros, to the size of the image that was pooled."""
    kernel = attribute(node, "kernel_shape", ())
    rank = len(kernel)
    pads, steps = attribute(node, "pads", (0,) * 2 * rank), attribute(node, "strides", (1,) * rank)
    slack = [kernel[i] - pads[i] - pads[i + rank] - steps[i] for i in range(rank)]
    pooled = op.Add(op.Mul(op.shape(x), op.ints([1, 1, *steps])), op.ints([0, 0, *slack]))
    before, after = op.ints([0] * (rank + 2)), op.Sub(pooled, op.shape(dy))
    return op.Pad(dy, op.Concat(before, after, axis=0))
