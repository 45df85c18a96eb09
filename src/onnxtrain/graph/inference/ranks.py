"""How many dimensions a value has, where ONNX's inference gives up on its sizes.

Gradient rules need ranks more often than sizes. An operator that takes a shape as an input gives
as many dimensions as that input has elements, which is mostly known even if the sizes are not.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import ONNX

_SHAPE_INPUT = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1}
"""Which input holds the shape of the output."""
_KEEP_RANK = frozenset(
    {"AveragePool", "Conv", "ConvTranspose", "CumSum", "GlobalAveragePool", "GlobalLpPool"}
    | {"GlobalMaxPool", "LpPool", "MaxPool", "Pad", "Resize", "ReverseSequence", "Slice", "Tile"}
    | {"Upsample"}
)
"""Operators whose first output has as many dimensions as their first input."""


def complete_ranks(model: ir.Model) -> bool:
    """Write ranks into values of unknown shape, in place; whether there were any."""
    found = False
    for node in all_nodes(model.graph):
        if node.domain != ONNX or not node.outputs or node.outputs[0].shape is not None:
            continue
        rank = _rank(node)
        if rank is not None and isinstance(node.outputs[0].type, ir.TensorType):
            node.outputs[0].shape = ir.Shape([None] * rank)
            found = True
    return found


def _rank(node: ir.Node) -> int | None:
    if node.op_type in _KEEP_RANK:
        return _rank_of(node.inputs[0])
    if node.op_type.startswith("Reduce"):
        return 0 if _reduces_all(node) else None
    place = _SHAPE_INPUT.get(node.op_type)
    if place is None or place >= len(node.inputs):
        return None
    length = _length(node.inputs[place])
    if node.op_type != "Expand" or length is None:
        return length
    own = _rank_of(node.inputs[0])
    return None if own is None else max(own, length)


def _reduces_all(node: ir.Node) -> bool:
    """Whether a reduction gives a scalar, whatever it is given."""
    numbers = node.attributes
    axes = "axes" in numbers or any(value is not None for value in node.inputs[1:])
    kept = numbers.get_int("keepdims", 1) or numbers.get_int("noop_with_empty_axes", 0)
    return not axes and not kept


def _rank_of(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _length(value: ir.Value | None) -> int | None:
    """The number of elements of a vector."""
    if value is None or value.shape is None or len(value.shape) != 1:
        return None
    size = value.shape[0]
    return size if isinstance(size, int) else None
