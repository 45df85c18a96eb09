"""What losses begin and end with: targets and reductions."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from onnxtrain.onnxblock import blocks, edit
from onnxtrain.onnxblock.values import exists, require_value

REDUCTIONS: dict[str, type[blocks.ReduceMean | blocks.ReduceSum] | None] = {
    "mean": blocks.ReduceMean,
    "sum": blocks.ReduceSum,
    "none": None,
}
"""The block of every reduction."""


def checked(reduction: str, known: Sequence[str] = tuple(REDUCTIONS)) -> str:
    """A reduction, if it is known.

    Raises:
        RuntimeError: if it is not.
    """
    if reduction not in known:
        raise RuntimeError(f"Reduction {reduction} not supported.")
    return reduction


def reduced(name: str, reduction: str) -> str:
    """Name of a value after its reduction."""
    block = REDUCTIONS[reduction]
    return name if block is None else str(block(keepdims=False)(name))


def target_of(model: onnx.ModelProto, prediction: str, name: str | None) -> str:
    """Name of the target, which becomes an input like the prediction if it does not exist."""
    if name and exists(model, name):
        return name
    return str(blocks.InputLike(prediction)(name))


def input_of(
    model: onnx.ModelProto, like: str, name: str | None, axes: Sequence[int], dtype: int | None
) -> str:
    """Name of a value, which becomes an input with some axes of another one if it is not there.

    Args:
        model: The model.
        like: The value whose axes are taken.
        name: Name of the input; None for a generated one.
        axes: Positions of the axes.
        dtype: Element type; None for that of the other value.

    Raises:
        LookupError: if the other value does not exist.
    """
    if name and exists(model, name):
        return name
    value = onnx.ValueInfoProto()
    value.CopyFrom(require_value(model, like))
    tensor = value.type.tensor_type
    tensor.elem_type = dtype or tensor.elem_type
    if tensor.HasField("shape"):
        dims = list(tensor.shape.dim)
        del tensor.shape.dim[:]
        tensor.shape.dim.extend(dims[axis] for axis in axes)
    name = name or edit.generate_name("input")
    edit.add_input_like(model, value, name)
    return name
