"""Which values of a graph are sums of squares, whose root is a length."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.known import number_of
from onnxtrain.types import ONNX

_SUMS = frozenset({"Add", "Sum"})
_OF_THE_FIRST = frozenset(
    {"Cast", "DequantizeLinear", "Expand", "Flatten", "Identity", "QuantizeLinear", "ReduceMean"}
    | {"ReduceSum", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that add up, move or round the elements of their first input."""
_DEEPEST = 16
"""So many nodes are looked at, one behind the other."""


def is_sum_of_squares(value: ir.Value | None, depth: int = _DEEPEST) -> bool:
    """Whether a value is 0 only where all numbers are, or nearly, that it was made of."""
    node = None if value is None else value.producer()
    if node is None or node.domain != ONNX or not depth:
        return False
    inputs = node.inputs
    if node.op_type == "Pow":
        return number_of(inputs[1]) == 2
    if node.op_type == "Mul":
        return inputs[0] is inputs[1]
    if node.op_type in _SUMS:
        return all(is_sum_of_squares(one, depth - 1) for one in inputs)
    if node.op_type in _OF_THE_FIRST:
        return is_sum_of_squares(inputs[0], depth - 1)
    return node.op_type == "ReduceSumSquare"
