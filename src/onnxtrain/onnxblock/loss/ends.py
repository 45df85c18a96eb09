"""What losses begin and end with: targets and reductions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import onnx

from onnxtrain.onnxblock import blocks, edit
from onnxtrain.onnxblock.values import exists, find_value, require_value

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
        _warn_of_broadcast(_sizes(model, prediction), _sizes(model, name), prediction, name)
        return name
    return str(blocks.InputLike(prediction)(name))


def _warn_of_broadcast(
    have: Sequence[int | str] | None, want: Sequence[int | str] | None, prediction: str, target: str
) -> None:
    """Warn if a target certainly has another shape than the prediction."""
    if have is None or want is None:
        return
    pairs = list(zip(have, want, strict=False))
    known = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    if len(have) != len(want) or any(a != b for a, b in known):
        shapes = [f"[{', '.join(map(str, sizes))}]" for sizes in (want, have)]
        warnings.warn(
            f"target '{target}' has shape {shapes[0]} and prediction '{prediction}' {shapes[1]}: "
            "the loss broadcasts them; reshape one of them if that is not meant",
            stacklevel=5,
        )


def _sizes(model: onnx.ModelProto, name: str) -> list[int | str] | None:
    """The shape of a value, with names or ? for free sizes; None if it is not known."""
    value = find_value(model, name)
    if value is None or not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in dims]


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
