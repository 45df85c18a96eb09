"""Which values of a graph are positive whatever is fed, such as a variance plus ε."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.known import constant_of, number_of
from onnxtrain.gradients.rules import attribute
from onnxtrain.types import ONNX

_NOT_NEGATIVE = frozenset(
    {"Abs", "Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Relu", "Sigmoid", "Softplus"}
    | {"Softmax", "Sqrt"}
)
_KEEPING = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reciprocal", "ReduceMax", "ReduceMean"}
    | {"ReduceMin", "ReduceSum", "Reshape", "Slice", "Sqrt", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose result has the sign of their first input."""
_SMALL = 4096
"""Constants of more elements are weights, of which no sign is asked."""


class Signs:
    """What is known of the signs of values; nodes are told in the order they run in."""

    def __init__(self) -> None:
        self._positive: set[ir.Value] = set()
        self._not_negative: set[ir.Value] = set()

    def is_positive(self, value: ir.Value | None) -> bool:
        """Whether a value is greater than 0 everywhere."""
        return value in self._positive or _least(value) > 0

    def _is_not_negative(self, value: ir.Value | None) -> bool:
        return value in self._not_negative or self.is_positive(value) or _least(value) >= 0

    def tell(self, node: ir.Node) -> None:
        """Find out about the outputs of a node."""
        if node.domain != ONNX or not node.inputs:
            return
        if self._makes_positive(node):
            self._positive.update(node.outputs)
        elif self._makes_no_negative(node):
            self._not_negative.update(node.outputs)

    def _makes_positive(self, node: ir.Node) -> bool:
        inputs, signs = node.inputs, [self.is_positive(value) for value in node.inputs]
        if node.op_type in _KEEPING:
            return signs[0]
        if node.op_type in {"Add", "Sum"}:
            return any(signs) and all(self._is_not_negative(value) for value in inputs)
        if node.op_type in {"Div", "Min", "Mul"}:
            return all(signs)
        if node.op_type == "Clip":
            least = number_of(inputs[1]) if len(inputs) > 1 else attribute(node, "min", None)
            return least is not None and least > 0
        return node.op_type == "Max" and any(signs)

    def _makes_no_negative(self, node: ir.Node) -> bool:
        inputs = node.inputs
        if node.op_type in _NOT_NEGATIVE:
            return True
        if node.op_type == "Pow":
            exponent = number_of(inputs[1])
            return exponent is not None and exponent % 2 == 0
        if node.op_type == "Mul" and inputs[0] is inputs[1]:
            return True
        if node.op_type in {"Add", "Div", "Min", "Mul", "Sum"}:
            return all(self._is_not_negative(value) for value in inputs)
        return node.op_type in _KEEPING and self._is_not_negative(inputs[0])


def _least(value: ir.Value | None) -> float:
    """The smallest element of a small constant of numbers, else below 0."""
    known = value is not None and value.const_value is not None and value.const_value.size <= _SMALL
    content = constant_of(value) if known else None
    if content is None or not content.size or content.dtype.kind in "OSU":
        return -1.0
    return float(content.min())
