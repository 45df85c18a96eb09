"""The small blocks that others are made of: nearly all are one operator each."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from onnxtrain.onnxblock import edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.operators import (
    Abs,
    Add,
    Binary,
    Div,
    Equal,
    Exp,
    Greater,
    Log,
    LogSoftmax,
    MatMul,
    Mul,
    Neg,
    Operator,
    ReduceMean,
    ReduceSum,
    Relu,
    Sigmoid,
    Sqrt,
    Sub,
    Transpose,
    Where,
)
from onnxtrain.onnxblock.values import element_type, opset_of, require_value
from onnxtrain.types import ML, MS

__all__ = [
    "Abs",
    "Add",
    "Block",
    "Cast",
    "Clip",
    "Constant",
    "Div",
    "Equal",
    "Exp",
    "Greater",
    "InputLike",
    "LabelEncoder",
    "Linear",
    "Log",
    "LogSoftmax",
    "MatMul",
    "Mul",
    "Neg",
    "PassThrough",
    "Pow",
    "ReduceAllL2",
    "ReduceMean",
    "ReduceSum",
    "Relu",
    "SequenceConstruct",
    "Sigmoid",
    "Sqrt",
    "Sub",
    "Transpose",
    "Where",
]


class Pow(Operator):
    """``x ** exponent``."""

    op_type = "Pow"

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self.exponent = exponent

    def build(self, pow_input_name: str) -> str:
        """Raise a value to the exponent, a constant of the value's own type."""
        dtype = element_type(self.base, pow_input_name)
        exponent = edit.add_constant(self.base, "pow_exponent", self.exponent, dtype)
        return self._add([pow_input_name, exponent])


class Clip(Operator):
    """``min(max(x, clip_min), clip_max)``; a bound of None does not bound."""

    op_type = "Clip"
    bounds_are_inputs_since = 11

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self.clip_min = clip_min
        self.clip_max = clip_max

    def build(self, clip_input_name: str) -> str:
        """Clip a value between constants of its own type."""
        bounds = {"min": self.clip_min, "max": self.clip_max}
        if opset_of(self.base) < self.bounds_are_inputs_since:
            given = {name: float(bound) for name, bound in bounds.items() if bound is not None}
            return self._add([clip_input_name], attributes=given)
        dtype = element_type(self.base, clip_input_name)
        names = [
            "" if bound is None else edit.add_constant(self.base, f"clip_{name}", bound, dtype)
            for name, bound in bounds.items()
        ]
        return self._add([clip_input_name, *names])


class Constant(Block):
    """A number as an initializer of rank 0, float unless another element type is given."""

    def __init__(self, value_float: float, element_type: int = onnx.TensorProto.FLOAT) -> None:
        super().__init__()
        self.value = value_float
        self.element_type = element_type

    def build(self) -> str:
        """Add the number."""
        return edit.add_constant(self.base, "initializer", self.value, self.element_type)


class SequenceConstruct(Operator):
    """A sequence of tensors."""

    op_type = "SequenceConstruct"

    def build(self, *sequence_input_names: str) -> str:
        """Put the values into a sequence."""
        return self._add(sequence_input_names)


class ReduceAllL2(Operator):
    """Euclidean norm of all elements of all values together, as float (double for doubles)."""

    op_type = "ReduceAllL2"

    def build(self, *reduce_node_input_names: str) -> str:
        """Add the norm."""
        output = self._add(reduce_node_input_names, MS)
        double = onnx.TensorProto.DOUBLE
        wide = element_type(self.base, reduce_node_input_names[0]) == double
        dtype = double if wide else onnx.TensorProto.FLOAT
        edit.declare(self.base, onnx.helper.make_tensor_value_info(output, dtype, []))
        return output


class PassThrough(Block):
    """Nothing: the results are the arguments."""

    def build(self, *input_names: str) -> tuple[str, ...]:
        """Give the names back."""
        return input_names


class InputLike(Block):
    """A new graph input with the type and shape of another value."""

    def __init__(self, like: str) -> None:
        super().__init__()
        self.like = like

    def build(self, input_name: str | None = None) -> str:
        """Add the input; without a name it gets a generated one.

        Raises:
            LookupError: if the value to copy is not there.
        """
        like = require_value(self.base, self.like)
        name = input_name or edit.generate_name("input")
        edit.add_input_like(self.base, like, name)
        return name


class LabelEncoder(Block):
    """A table from keys to values, each of floats, int64s or strings; others give the default."""

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: list[float] | None = None,
        keys_int64s: list[int] | None = None,
        keys_strings: list[str] | None = None,
        values_floats: list[float] | None = None,
        values_int64s: list[int] | None = None,
        values_strings: list[str] | None = None,
    ) -> None:
        super().__init__()
        table = {
            "default_float": float(default_float),
            "default_int64": default_int64,
            "default_string": default_string,
            "keys_floats": _floats(keys_floats),
            "keys_int64s": keys_int64s,
            "keys_strings": keys_strings,
            "values_floats": _floats(values_floats),
            "values_int64s": values_int64s,
            "values_strings": values_strings,
        }
        self.attributes = {name: value for name, value in table.items() if value is not None}

    def build(self, label_encoder_input_name: str) -> str:
        """Look up every element of a value."""
        output = edit.generate_name("label_encoder.output")
        inputs = [label_encoder_input_name]
        edit.add_node(self.base, "LabelEncoder", inputs, [output], ML, self.attributes)
        return output


class Cast(Block):
    """Conversion to another element type."""

    def __init__(self, to: int) -> None:
        super().__init__()
        self.to = to

    def build(self, cast_input_name: str) -> str:
        """Convert a value."""
        output = edit.generate_name("cast.output")
        to = edit.cast_to(self.base, self.to)
        edit.add_node(self.base, "Cast", [cast_input_name], [output], attributes=to)
        return output


class Linear(Block):
    """``alpha * x @ weight + beta * bias`` with new parameters drawn from a normal distribution."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.bias = bias
        self.alpha = alpha
        self.beta = beta

    def build(self, linear_input_name: str) -> str:
        """Multiply a matrix of rows by the weight, of shape (in_features, out_features)."""
        shapes: dict[str, tuple[int, ...]] = {
            "linear.weight": (self.in_features, self.out_features)
        }
        if self.bias:
            shapes["linear.bias"] = (self.out_features,)
        dtype = element_type(self.base, linear_input_name)
        parameters = [
            edit.add_constant(self.base, token, np.random.randn(*shape), dtype)
            for token, shape in shapes.items()
        ]
        output = edit.generate_name("linear.output")
        inputs = [linear_input_name, *parameters]
        scale = {"alpha": float(self.alpha), "beta": float(self.beta)}
        edit.add_node(self.base, "Gemm", inputs, [output], attributes=scale)
        return output


class _UnaryOp(Operator):
    """An operator of one value by its name: what blocks for onnxruntime-training derive from."""

    def __init__(self, op_name: str, **attributes: Any) -> None:
        super().__init__()
        self.op_type = self._op_name = op_name
        self._attributes = attributes

    def build(self, input_name: str) -> str:
        """Transform one value."""
        return self._add([input_name], attributes=self._attributes)


class _BinaryOp(Binary):
    """An operator of two values by its name: what blocks for onnxruntime-training derive from."""

    def __init__(self, op_name: str) -> None:
        super().__init__()
        self.op_type = self._op_name = op_name


def _floats(values: list[float] | None) -> list[float] | None:
    """Make Python integers floats, since the attribute's type follows its elements."""
    return None if values is None else [float(value) for value in values]
