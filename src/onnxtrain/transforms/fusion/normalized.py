"""Data divided by its root mean square, which layer and RMS normalization have in common.

Written as d/√(mean(d²) + ε) or d·(1/√(mean(d²) + ε)), where d is the data itself or the data less
its mean; then times a scale, then plus a bias. ``spread`` has the form of other converters.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.transforms.fusion.norm_found import Normalized
from onnxtrain.transforms.fusion.pattern import Refusal
from onnxtrain.transforms.fusion.reading import (
    MEANS,
    is_op,
    keeps_rank,
    made_by,
    number,
    only_reader,
    pairs,
    reduced_axes,
)
from onnxtrain.transforms.fusion.spread import join_spread
from onnxtrain.types import DataType

HALVES = (DataType.FLOAT16, DataType.BFLOAT16)


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
    before = list(nodes)
    direct = _quotient(result, root, deviation)
    if not direct:
        nodes[:] = before
        if not join_spread(result, root, deviation):
            return None
    if not keeps_rank(result.nodes[-1], data):
        raise Refusal("a number of more dimensions than the data adds dimensions to it")
    if direct:
        _affine(result)
    return result


def _mean_of_squares(total: ir.Node, nodes: list[ir.Node]) -> tuple[ir.Node, float] | None:
    """The mean and the number of mean + ε."""
    for a, b in pairs(total):
        mean, epsilon = made_by(a, *MEANS), number(b)
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
    mean = None if difference is None else made_by(difference.inputs[1], *MEANS)
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
        found.need_sizes()
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
    return next((b for a, b in pairs(node) if a is found.result and found.fits(b)), None)
