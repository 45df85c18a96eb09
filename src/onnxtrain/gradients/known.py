"""What a rule can know about values while the graph is being built."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.errors import GraphError
from onnxtrain.gradients.rules import Grad, attribute
from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import extra_output
from onnxtrain.graph.inference.einsum import parse
from onnxtrain.types import DataType

HALVES = frozenset({DataType.FLOAT16, DataType.BFLOAT16})
_EINSUM = 12
"""The first opset with Einsum."""
_FROM_THE_END = 11
"""The opset since which all operators take axes that are counted from the end."""


def constant_of(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """The content of a value that no feed can change, else None."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def ints_of(value: ir.Value | None) -> list[int] | None:
    """The content of a constant vector (or scalar) of whole numbers, else None."""
    array = constant_of(value)
    return None if array is None else [int(n) for n in array.ravel()]


def number_of(value: ir.Value | None) -> float | None:
    """The content of a constant with a single element, else None."""
    array = constant_of(value)
    return float(array.ravel()[0]) if array is not None and array.size == 1 else None


def real(node: ir.Node, name: str, default: float) -> float:
    """A floating point attribute, or the schema's default as the float32 that ONNX stores.

    One that a transform wrote may have more digits, with which the operator computes too.
    """
    return float(attribute(node, name, float(np.float32(default))))


def rank_of(value: ir.Value) -> int | None:
    """How many dimensions a value has, None if that is not known."""
    return None if value.shape is None else len(value.shape)


class UnknownRankError(GraphError):
    """A rule needs the rank of a value that has none; the engine adds the node."""


def need_rank(value: ir.Value, why: str) -> int:
    """How many dimensions a value has.

    Raises:
        UnknownRankError: if that is not known.
    """
    if value.shape is None:
        raise UnknownRankError(
            f"the rank of '{value.name}' is not known, the gradient of {why} needs it\n"
            "  declare the shapes of the model's inputs (names may stand for sizes)"
        )
    return len(value.shape)


def last_axis(op: Ops, value: ir.Value, why: str) -> int:
    """The last axis of a value, counted from the end where only a run knows the rank."""
    if value.shape is None and op.opset >= _FROM_THE_END:
        return -1
    return need_rank(value, why) - 1


def moved(op: Ops, x: ir.Value, equation: str, why: str) -> ir.Value:
    """Axes in another order, like ``n...c->nc...``; an Einsum where only a run knows the rank."""
    if x.shape is None and op.opset >= _EINSUM:
        return op.Einsum(x, equation=equation)
    (before,), after = parse(equation, [need_rank(x, why)])
    return op.Transpose(x, perm=[before.index(letter) for letter in after])


def dim_of(value: ir.Value, axis: int) -> int | None:
    """The size of an axis, None if it is not a known number."""
    if value.shape is None:
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def axis_in(value: ir.Value, axis: int) -> int:
    """An axis counted from the front where the rank is known."""
    rank = rank_of(value)
    return axis + rank if axis < 0 and rank is not None else axis


def operands(node: ir.Node) -> list[ir.Value]:
    """The inputs of a node that leaves none out."""
    return [value for value in node.inputs if value is not None]


def to_first(node: ir.Node, grad: Grad) -> list[Grad]:
    """The gradient of the first input; the others have none."""
    return [grad, *[None] * (len(node.inputs) - 1)]


def inputs_of(node: ir.Node, count: int) -> list[Grad]:
    """The first inputs of a node, None for those that are absent."""
    return [*node.inputs, *[None] * count][:count]


def output_of(
    node: ir.Node, index: int, suffix: str, dtype: DataType, shape: ir.Shape | None = None
) -> ir.Value:
    """Output ``index`` of a forward node; made and typed if the node did not have it."""
    value = extra_output(node, index, f"{node.outputs[0].name or node.name}{suffix}")
    if value.type is None:
        value.type = ir.TensorType(dtype)
        value.shape = shape
    return value


def axes_of(node: ir.Node) -> list[int] | ir.Value | None:
    """Axes of a node: constants from its attribute or second input, a value, or None."""
    found = node.attributes.get("axes")
    if found is not None:
        return list(found.as_ints())
    value = node.inputs[1] if len(node.inputs) > 1 else None
    known = ints_of(value)
    return value if known is None else known


def exact_in_float(op: Ops, x: ir.Value) -> ir.Value:
    """A value that is only compared, in a type that every version of an operator takes."""
    return op.cast(x, DataType.FLOAT) if x.dtype == DataType.BFLOAT16 else x
