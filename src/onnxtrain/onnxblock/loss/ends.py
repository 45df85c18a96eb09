"""What losses begin and end with: targets and reductions."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence

import onnx

from onnxtrain.errors import LossError
from onnxtrain.onnxblock import blocks, edit
from onnxtrain.onnxblock.values import exists, find_value, require_value
from onnxtrain.types import DataType, dtype_name

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
    """Name of the target, which becomes an input like the prediction if it does not exist.

    Raises:
        LossError: if a target that exists cannot be compared with the prediction.
    """
    if name and exists(model, name):
        _compare(_sizes(model, prediction), _sizes(model, name), prediction, name)
        return name
    return str(blocks.InputLike(prediction)(name))


def _compare(
    have: Sequence[int | str] | None, want: Sequence[int | str] | None, prediction: str, target: str
) -> None:
    """Warn if a target certainly has another shape than the prediction, refuse what never fits."""
    if have is None or want is None:
        return
    pairs = itertools.zip_longest(reversed(have), reversed(want), fillvalue=1)
    other = [{a, b} for a, b in pairs if isinstance(a, int) and isinstance(b, int) and a != b]
    if len(have) == len(want) and not other:
        return
    shapes = [f"[{', '.join(map(str, sizes))}]" for sizes in (want, have)]
    told = f"target '{target}' has shape {shapes[0]} and prediction '{prediction}' {shapes[1]}: "
    if all(1 in sizes for sizes in other):
        told += "the loss broadcasts them; reshape one of them if that is not meant"
        warnings.warn(told, stacklevel=5)
        return
    raise LossError(f"{told}the loss cannot compare them\n  {_another_name(prediction)}")


def _another_name(prediction: str) -> str:
    """What to do where the name of a target is taken."""
    return (
        "give the loss a name that the model does not have, which becomes a new input, such as\n"
        f"  loss_input_names=['{prediction}', 'truth'] of generate_artifacts"
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
        LossError: if the value has fractions where whole numbers are needed.
    """
    if name and exists(model, name):
        _check_whole(model, like, name, dtype)
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


def _check_whole(model: onnx.ModelProto, like: str, name: str, dtype: int | None) -> None:
    value = find_value(model, name)
    found = DataType(0 if value is None else value.type.tensor_type.elem_type)
    if dtype == onnx.TensorProto.INT64 and found.is_floating_point():
        raise LossError(
            f"the loss takes whole numbers, but '{name}' of the model is {dtype_name(found)}\n"
            f"  {_another_name(like)}"
        )
