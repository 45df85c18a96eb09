"""Normalization as TensorFlow writes it: a factor and a shift for the data, not for the deviation.

With r = 1/√(mean of squares + ε) and m = r·scale it is x·m + (bias - mean·m).
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.transforms.fusion.norm_found import Normalized
from onnxtrain.transforms.fusion.reading import is_op, made_by, number, only_reader, pairs


def join_spread(found: Normalized, root: ir.Node, deviation: ir.Value) -> bool:
    """Take in what is behind the root of a mean of squares; whether it is a normalization.

    Args:
        found: What is in front of the root.
        root: The Sqrt.
        deviation: What the squares are of.
    """
    inverse = only_reader(root.outputs[0], "Reciprocal", "Div")
    if inverse is None or (is_op(inverse, "Div") and number(inverse.inputs[0]) != 1):
        return False
    factor = inverse.outputs[0]
    found.nodes += [root, inverse]
    scaled = only_reader(factor, "Mul")
    if scaled is not None:
        found.scale = _beside(scaled, factor, found)
        if found.scale is not None:
            found.nodes.append(scaled)
            factor = scaled.outputs[0]
    if found.scale is None:
        found.need_sizes()
    product = only_reader(factor, "Mul")
    if product is None:
        return found.centred and _two_products(found, factor)
    if not any(a is factor and b is deviation for a, b in pairs(product)):
        return False
    found.nodes.append(product)
    if found.centred:
        _add_bias(found)
    return True


def _two_products(found: Normalized, factor: ir.Value) -> bool:
    """Whether data and mean are multiplied by a factor, and their difference is taken."""
    readers = list(dict.fromkeys(node for node, _ in factor.uses()))
    if len(readers) != 2 or not all(is_op(node, "Mul") for node in readers):
        return False
    mean = found.nodes[0].outputs[0]
    beside = {b: node for node in readers for a, b in pairs(node) if a is factor}
    negated = next((v for v in beside if _is_negated(v, mean)), None)
    data, shift = beside.get(found.data), beside.get(mean if negated is None else negated)
    if data is None or shift is None:
        return False
    if negated is not None:
        negation = negated.producer()
        assert negation is not None
        found.nodes.append(negation)
    found.nodes += [data, shift]
    return _difference(found, data.outputs[0], shift.outputs[0], negated is not None)


def _is_negated(value: ir.Value, of: ir.Value) -> bool:
    node = made_by(value, "Neg")
    return node is not None and node.inputs[0] is of


def _difference(found: Normalized, data: ir.Value, shift: ir.Value, negated: bool) -> bool:
    """Look for data - shift or data + shift, with a bias in the shift or behind."""
    last = only_reader(data, "Add", "Sub")
    inner = only_reader(shift, "Add", "Sub")
    if last is None or inner is None:
        return False
    if last is inner:
        found.nodes.append(last)
        _add_bias(found)
        subtracts = is_op(last, "Sub") and last.inputs[0] is data
        return is_op(last, "Add") if negated else subtracts
    if not is_op(last, "Add") or inner.outputs[0] not in last.inputs:
        return False
    if is_op(inner, "Add") != negated or (is_op(inner, "Sub") and inner.inputs[1] is not shift):
        return False
    found.bias = _beside(inner, shift, found)
    found.nodes += [inner, last]
    return found.bias is not None


def _add_bias(found: Normalized) -> None:
    """Take in a bias that is added to the result."""
    total = only_reader(found.result, "Add")
    bias = None if total is None else _beside(total, found.result, found)
    if total is not None and bias is not None:
        found.nodes.append(total)
        found.bias = bias


def _beside(node: ir.Node, value: ir.Value, found: Normalized) -> ir.Value | None:
    """The operand beside a value, if it varies along the normalized axes only."""
    return next((b for a, b in pairs(node) if a is value and found.fits(b)), None)
