"""Gradients of resizing and of grids of sampling points."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.gradients.known import inputs_of, ints_of, operands, to_first
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS, DataType


@gradient("Resize", since=11)
def resize(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The transposed map, in one operator; without scales it goes by the sizes of x and dy.

    A scale that sizes and the aspect ratio decide together is known to Resize alone. Regions and
    scales have no gradient: they are read before the run.
    """
    x, roi, scales, sizes = inputs_of(node, 4)
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    if sizes is not None and policy != "stretch":
        return to_first(node, pulled_back(op, node, [dy])[0])
    region = None if roi is None else op.cast(roi, dy)
    factors = None if sizes is not None else scales
    options = {"mode": "nearest", **forwarded(node)}
    return to_first(node, op.ResizeGrad(dy, x, region, factors, **options, _domain=MS))


@gradient("Resize", until=10)
def resize_10(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The first version read position i/scale, rounded down, or up where the axis shrinks."""
    return to_first(node, _asymmetric(op, node, dy, node.inputs[1]))


@gradient("Upsample", since=7)
def upsample(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """The same, with scales as an attribute at first."""
    listed = attribute(node, "scales", None)
    if listed is not None:
        return [_asymmetric(op, node, dy, op.const(np.asarray(listed), DataType.FLOAT))]
    return to_first(node, _asymmetric(op, node, dy, node.inputs[1]))


def _asymmetric(op: Ops, node: ir.Node, dy: ir.Value, scales: Grad) -> ir.Value:
    return op.ResizeGrad(
        dy,
        node.inputs[0],
        None,
        scales,
        mode=attribute(node, "mode", "nearest"),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="by_scale",
        _domain=MS,
    )


@gradient("AffineGrid")
def affine_grid(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """y = p·θᵀ for each sampling point p = (x, y, .., 1): dθ = dyᵀ·p."""
    theta, size = operands(node)
    unit = _unit_map(op, theta)
    corners = attribute(node, "align_corners", 0)
    points = op.AffineGrid(unit, size, align_corners=corners)
    plane = op.shape(theta)
    sides = op.Gather(plane, op.ints([0]), axis=0), op.Gather(plane, op.ints([1]), axis=0)
    flat = op.Concat(sides[0], op.ints([-1]), sides[1], axis=0)
    rows, grads = op.Reshape(points, flat), op.Reshape(dy, flat)
    first = op.Slice(rows, op.ints([0]), op.ints([1]), op.ints([2]))
    ones = op.filled(1, shape_of=first, like=rows)
    homogeneous = op.Concat(rows, ones, axis=2)
    return [op.FusedMatMul(grads, homogeneous, transA=1, _domain=MS), None]


def _unit_map(op: Ops, theta: ir.Value) -> ir.Value:
    """The transformation that leaves every point where it is, once for each sample."""
    sizes = op.shape(theta)
    matrix = op.Slice(sizes, op.ints([1]), op.ints([3]))
    one = op.EyeLike(op.Expand(op.scalar(0, theta), matrix))
    return op.Expand(one, sizes)


@gradient("Col2Im")
def col2im(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Blocks were added up to an image; each gets the gradient of the pixels it covers."""
    x, image, block = operands(node)
    sizes, kernel = ints_of(image), ints_of(block)
    if sizes is None or kernel is None:
        return to_first(node, pulled_back(op, node, [dy])[0])
    places = _covered(node, sizes, kernel)
    pixels = op.rows(dy)
    taken = op.Gather(pixels, op.const(np.maximum(places, 0)), axis=2)
    inside = op.const(places >= 0, x.dtype)
    return [op.reshape_like(op.Mul(taken, inside), x), None, None]


def _covered(node: ir.Node, sizes: list[int], kernel: list[int]) -> npt.NDArray[np.int64]:
    """[elements of a block, blocks]: the flat place of each in the image, -1 for padding."""
    rank = len(sizes)
    ones, none = (1,) * rank, (0,) * (2 * rank)
    strides, dilations = attribute(node, "strides", ones), attribute(node, "dilations", ones)
    pads = attribute(node, "pads", none)
    flat, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for axis, (size, width) in enumerate(zip(sizes, kernel, strict=True)):
        reach = (width - 1) * dilations[axis] + 1
        steps = (size + pads[axis] + pads[rank + axis] - reach) // strides[axis] + 1
        taps = np.arange(width)[:, None] * dilations[axis]
        along = np.arange(steps)[None] * strides[axis] + taps - pads[axis]
        flat = _outer(flat * size, along)
        inside = _outer(inside, (along >= 0) & (along < size), np.logical_and)
    return np.where(inside, flat, -1)


def _outer(a: npt.NDArray[Any], b: npt.NDArray[Any], join: np.ufunc = np.add) -> npt.NDArray[Any]:
    """Rows and columns of b inside those of a."""
    both = join(a[:, None, :, None], b[None, :, None, :])
    return both.reshape(a.shape[0] * b.shape[0], a.shape[1] * b.shape[1])  # type: ignore[no-any-return]
