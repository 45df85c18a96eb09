"""Data divided by its root mean square, which layer and RMS normalization have in common.

Written as d/√(mean(d²) + ε) or d·(1/√(mean(d²) + ε)), where d is the data itself or the data less
its mean; then times a scale, then plus a bias.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.pattern import Refusal
from onnxtrain.transforms.fusion.reading import (
    is_op,
    keeps_rank,
    made_by,
    number,
    only_reader,
    pairs,
    rank,
    reduced_axes,
)
from onnxtrain.types import DataType

HALVES = (DataType.FLOAT16, DataType.BFLOAT16)


@dataclasses.dataclass
class Normalized:
    """What was found around a Sqrt.

    Attributes:
        data: What is normalized.
        centred: Whether its mean is subtracted.
        axes: How many of the last axes are normalized.
        epsilon: What is added to the mean of squares.
        nodes: The nodes, in order of use; the last one gives the result.
        scale: What the result is multiplied by.
        bias: What is added then.
    """

    data: ir.Value
    centred: bool
    axes: int
    epsilon: float
    nodes: list[ir.Node]
    scale: ir.Value | None = None
    bias: ir.Value | None = None

    @property
    def result(self) -> ir.Value:
        """What the nodes give."""
        return self.nodes[-1].outputs[0]

    @property
    def stash_type(self) -> int:
        """The type of the statistics that a gradient needs."""
        double = self.data.dtype == DataType.DOUBLE
        return int(DataType.DOUBLE if double else DataType.FLOAT)

    def scale_or_ones(self, op: Ops) -> ir.Value:
        """The scale; ones in the shape of what is normalized if there is none."""
        if self.scale is not None:
            return self.scale
        assert self.data.shape is not None and self.data.dtype is not None
        sizes = [d for d in list(self.data.shape)[-self.axes :] if isinstance(d, int)]
        return op.const(np.ones(sizes), self.data.dtype)


def read(root: ir.Node) -> Normalized | None:
    """What is normalized by a Sqrt.

    Raises:
        Refusal: if it is nearly a normalization.
    """
    nodes: list[ir.Node] = []
    total = made_by(root.inputs[0], "Add")
    found = None if total is None else _mean_of_squares(total, nodes)
    if total is None or found is None:
        return None
    mean, epsilon = found
    axes = _last_axes(mean)
    deviation = _squared(mean, nodes)
    if deviation is None:
        return None
    data, centred = deviation, False
    if (source := _centred(deviation, mean, nodes)) is not None:
        data, centred = source, True
    result = Normalized(data, centred, axes, epsilon, nodes)
    if not _quotient(result, root, deviation):
        return None
    if not keeps_rank(result.nodes[-1], data):
        raise Refusal("a number of more dimensions than the data adds dimensions to it")
    _affine(result)
    return result


def _mean_of_squares(total: ir.Node, nodes: list[ir.Node]) -> tuple[ir.Node, float] | None:
    """The mean and the number of mean + ε."""
    for a, b in pairs(total):
        mean, epsilon = made_by(a, "ReduceMean"), number(b)
        if mean is not None and epsilon is not None and epsilon >= 0:
            nodes += [mean, total]
            return mean, epsilon
    return None


def _last_axes(mean: ir.Node) -> int:
    """How many axes a mean is over, all of them the last ones."""
    axes = reduced_axes(mean)
    if axes is None:
        raise Refusal(f"the axes of '{mean.name}' (ReduceMean) are not known")
    if axes != list(range(-len(axes), 0)) or not axes:
        raise Refusal(f"the mean is over axes {axes}, not over the last ones")
    if not mean.attributes.get_int("keepdims", 1):
        raise Refusal(f"'{mean.name}' (ReduceMean) drops the axes that it is over")
    return len(axes)


def _squared(mean: ir.Node, nodes: list[ir.Node]) -> ir.Value | None:
    """What the squares are of."""
    square = made_by(mean.inputs[0], "Pow", "Mul")
    if square is None or square.inputs[0] is None:
        return None
    if is_op(square, "Pow") and number(square.inputs[1]) != 2:
        return None
    if is_op(square, "Mul") and square.inputs[0] is not square.inputs[1]:
        return None
    nodes.insert(0, square)
    return square.inputs[0]


def _centred(deviation: ir.Value, of_squares: ir.Node, nodes: list[ir.Node]) -> ir.Value | None:
    """What a deviation is of, if it is less its own mean over the same axes."""
    difference = made_by(deviation, "Sub")
    mean = None if difference is None else made_by(difference.inputs[1], "ReduceMean")
    if difference is None or mean is None or mean.inputs[0] is not difference.inputs[0]:
        return None
    if reduced_axes(mean) != reduced_axes(of_squares) or not mean.attributes.get_int("keepdims", 1):
        return None
    nodes[:0] = [mean, difference]
    return difference.inputs[0]


def _quotient(found: Normalized, root: ir.Node, deviation: ir.Value) -> bool:
    """Look for deviation / root, or deviation · (1 / root)."""
    found.nodes.append(root)
    value = root.outputs[0]
    node = only_reader(value, "Div", "Reciprocal")
    if node is None:
        return False
    if is_op(node, "Div") and _is_same(node.inputs[0], deviation, found):
        found.nodes.append(node)
        return node.inputs[1] is value
    if is_op(node, "Div") and number(node.inputs[0]) != 1:
        return False
    product = only_reader(node.outputs[0], "Mul")
    if product is None:
        return False
    found.nodes += [node, product]
    return any(a is node.outputs[0] and _is_same(b, deviation, found) for a, b in pairs(product))


def _is_same(value: ir.Value | None, deviation: ir.Value, found: Normalized) -> bool:
    """Whether a value is the deviation, or that computed a second time."""
    if value is deviation:
        return True
    again, first = made_by(value, "Sub"), deviation.producer()
    if not found.centred or again is None or first is None:
        return False
    if list(again.inputs) != list(first.inputs):
        return False
    found.nodes.insert(2, again)
    return True


def _affine(found: Normalized) -> None:
    """Take in a scale and a bias that vary along the normalized axes only."""
    wide = found.data, len(found.nodes)
    _narrow(found)
    product = only_reader(found.result, "Mul")
    scale = None if product is None else _parameter(product, found)
    if product is None or scale is None:
        found.data = wide[0]
        del found.nodes[wide[1] :]
        _need_sizes(found)
        return
    found.nodes.append(product)
    found.scale = scale
    total = only_reader(found.result, "Add") if found.centred else None
    bias = None if total is None else _parameter(total, found)
    if total is not None and bias is not None:
        found.nodes.append(total)
        found.bias = bias


def _narrow(found: Normalized) -> None:
    """Pass by casts around the normalization, which is computed in float whatever its type is."""
    before, behind = made_by(found.data, "Cast"), only_reader(found.result, "Cast")
    if before is None or behind is None or found.data.dtype != DataType.FLOAT:
        return
    source = before.inputs[0]
    if source is not None and source.dtype in HALVES and source.dtype == behind.outputs[0].dtype:
        found.data = source
        found.nodes.append(behind)


def _parameter(node: ir.Node, found: Normalized) -> ir.Value | None:
    """The operand beside a result, if it has the normalized axes only and their sizes."""
    for a, b in pairs(node):
        size = rank(b)
        if a is not found.result or size is None or not 0 < size <= found.axes:
            continue
        if found.data.shape is None or b.shape is None:
            continue
        wanted = list(found.data.shape)[-size:]
        if size == found.axes and list(b.shape) == wanted:
            return b
    return None


def _need_sizes(found: Normalized) -> None:
    shape = found.data.shape
    if shape is None or not all(isinstance(d, int) for d in list(shape)[-found.axes :]):
        raise Refusal("there is no scale, and the sizes of the normalized axes are not known")
