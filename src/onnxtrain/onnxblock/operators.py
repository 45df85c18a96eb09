"""Blocks that are one operator with at most an attribute or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from onnxtrain.errors import ModelError
from onnxtrain.onnxblock import edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.values import element_type, opset_of, require_value


class Operator(Block):
    """A block that is one node with one output, named after the operator."""

    op_type = ""

    def _add(
        self, inputs: Sequence[str], domain: str = "", attributes: Mapping[str, Any] | None = None
    ) -> str:
        output = edit.generate_name(f"{self.op_type.lower()}_output")
        edit.add_node(self.base, self.op_type, inputs, [output], domain, attributes)
        return output


class Binary(Operator):
    """An operator of two values, with broadcasting."""

    def build(self, input_name1: str, input_name2: str) -> str:
        """Combine two values."""
        return self._add([input_name1, input_name2])


class Unary(Operator):
    """An operator of one value."""

    def build(self, input_name: str) -> str:
        """Transform one value."""
        return self._add([input_name])


class Reduction(Operator):
    """An operator that reduces all axes of a value, or those that are given."""

    axes_are_an_input_since = 18

    def __init__(self, keepdims: bool = True, axes: Sequence[int] | None = None) -> None:
        super().__init__()
        self.keepdims = keepdims
        self.axes = axes

    def build(self, input_name: str) -> str:
        """Reduce one value."""
        inputs, attributes = [input_name], {"keepdims": int(self.keepdims)}
        if self.axes is not None and opset_of(self.base) < self.axes_are_an_input_since:
            attributes |= {"axes": list(self.axes)}  # type: ignore[dict-item]
        elif self.axes is not None:
            axes = edit.add_constant(self.base, "axes", list(self.axes), onnx.TensorProto.INT64)
            inputs.append(axes)
        return self._add(inputs, attributes=attributes)


class Add(Binary):
    """``a + b``."""

    op_type = "Add"


class Sub(Binary):
    """``a - b``."""

    op_type = "Sub"


class Mul(Binary):
    """``a * b``."""

    op_type = "Mul"


class Div(Binary):
    """``a / b``."""

    op_type = "Div"


class MatMul(Binary):
    """``a @ b``."""

    op_type = "MatMul"


class Equal(Binary):
    """``a == b``."""

    op_type = "Equal"


class Greater(Binary):
    """``a > b``."""

    op_type = "Greater"


class Sigmoid(Unary):
    """``1 / (1 + exp(-x))``."""

    op_type = "Sigmoid"


class Log(Unary):
    """Natural logarithm."""

    op_type = "Log"


class Exp(Unary):
    """``e ** x``."""

    op_type = "Exp"


class Neg(Unary):
    """``-x``."""

    op_type = "Neg"


class Abs(Unary):
    """``|x|``."""

    op_type = "Abs"


class Sqrt(Unary):
    """``x ** 0.5``."""

    op_type = "Sqrt"


class Relu(Unary):
    """``max(x, 0)``."""

    op_type = "Relu"


class Transpose(Unary):
    """The value with its axes in reverse order."""

    op_type = "Transpose"


class ReduceMean(Reduction):
    """Mean of all elements, or over some axes."""

    op_type = "ReduceMean"


class ReduceSum(Reduction):
    """Sum of all elements, or over some axes."""

    op_type = "ReduceSum"
    axes_are_an_input_since = 13


class LogSoftmax(Operator):
    """``log(exp(x) / sum(exp(x)))`` over one axis."""

    op_type = "LogSoftmax"
    one_axis_since = 13

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def build(self, input_name: str) -> str:
        """Normalise one value.

        Raises:
            ModelError: if the opset of the model would take several axes together.
        """
        if opset_of(self.base) < self.one_axis_since:
            rank = len(require_value(self.base, input_name).type.tensor_type.shape.dim)
            if self.axis not in (-1, rank - 1):
                raise ModelError(
                    f"cannot normalise axis {self.axis} of '{input_name}', which has {rank}: "
                    f"LogSoftmax of opset {opset_of(self.base)} takes all axes behind it too\n"
                    f"  bring the model to opset {self.one_axis_since} or later"
                )
        return self._add([input_name], attributes={"axis": self.axis})


class Where(Operator):
    """``a`` where a condition holds, ``b`` elsewhere."""

    op_type = "Where"
    since = 9

    def build(self, condition_name: str, input_name1: str, input_name2: str) -> str:
        """Choose between two values, which must be finite where there is no such operator."""
        if opset_of(self.base) >= self.since:
            return self._add([condition_name, input_name1, input_name2])
        closed = self._node("Not", [condition_name])
        to = edit.cast_to(self.base, element_type(self.base, input_name1))
        parts = [
            self._node("Mul", [self._node("Cast", [chosen], to), name])
            for chosen, name in ((condition_name, input_name1), (closed, input_name2))
        ]
        return self._node("Add", parts)

    def _node(
        self, op_type: str, inputs: Sequence[str], attributes: Mapping[str, Any] | None = None
    ) -> str:
        output = edit.generate_name(f"where_{op_type.lower()}_output")
        edit.add_node(self.base, op_type, inputs, [output], "", attributes)
        return output
