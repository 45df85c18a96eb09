"""Sequences (lists of tensors) and optionals (a value or None)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axis_of, scalar
from onnxtrain.types import DataType


@kernel("SequenceConstruct", since=11, view="inputs")
def sequence_construct(*inputs: Tensor) -> list[Tensor]:
    """The inputs as a sequence."""
    return list(inputs)


@kernel("SequenceEmpty", since=11)
def sequence_empty(*, dtype: int = DataType.FLOAT) -> list[Tensor]:
    """A sequence without elements."""
    return []


@kernel("SequenceAt", since=11, view="input_sequence", host=["position"])
def sequence_at(input_sequence: Sequence[Tensor], position: Any) -> Tensor:
    """The element at a position; negative ones count from the end."""
    return input_sequence[_position(position, len(input_sequence))]


@kernel("SequenceInsert", since=11, view={"input_sequence": 0, "tensor": 0}, host=["position"])
def sequence_insert(
    input_sequence: Sequence[Tensor], tensor: Tensor, position: Any = None
) -> list[Tensor]:
    """The sequence with one more element before a position (at the end by default)."""
    count = len(input_sequence)
    at = count if position is None else int(scalar(position))
    if not -count <= at <= count:
        raise ValueError(f"position {at} is not in valid range [-{count},{count}]")
    at = at + count if at < 0 else at
    return [*input_sequence[:at], tensor, *input_sequence[at:]]


@kernel("SequenceErase", since=11, view="input_sequence", host=["position"])
def sequence_erase(input_sequence: Sequence[Tensor], position: Any = None) -> list[Tensor]:
    """The sequence without the element at a position (the last one by default)."""
    at = _position(-1 if position is None else position, len(input_sequence))
    return [*input_sequence[:at], *input_sequence[at + 1 :]]


def _position(value: Any, count: int) -> int:
    at = int(scalar(value))
    if not -count <= at < count:
        raise ValueError(f"position {at} is not in valid range [-{count},{count - 1}]")
    return at % count


@kernel("SequenceLength", since=11, host_out=[0])
def sequence_length(input_sequence: Sequence[Tensor]) -> Tensor:
    """The number of elements."""
    return torch.tensor(len(input_sequence), dtype=torch.int64)


@kernel("SplitToSequence", since=11, view="input", host=["split"])
def split_to_sequence(
    input: Tensor, split: Any = None, *, axis: int = 0, keepdims: int = 1
) -> list[Tensor]:
    """The parts of the input along an axis: single slices, chunks of one size, or given sizes."""
    axis = axis_of(axis, input.ndim)
    if split is None:
        return list(input.split(1, axis) if keepdims else input.unbind(axis))
    if isinstance(split, list) and sum(split) != input.shape[axis]:
        raise ValueError(f"split {split} does not add up to {input.shape[axis]}, the axis's size")
    return list(input.split(split, axis))


@kernel("ConcatFromSequence", since=11)
def concat_from_sequence(
    input_sequence: Sequence[Tensor], *, axis: int, new_axis: int = 0
) -> Tensor:
    """All elements one after the other along an axis, which is a new one if ``new_axis``."""
    join = torch.stack if new_axis else torch.cat
    return join(list(input_sequence), axis_of(axis, input_sequence[0].ndim + bool(new_axis)))


@kernel("Optional", since=15, view="input")
def optional(input: Any = None, *, type: Any = None) -> Any:
    """The input, or an optional without a value if there is none."""
    return input


@kernel("OptionalHasElement", since=15, host_out=[0])
def optional_has_element(input: Any = None) -> Tensor:
    """Whether the optional has a value."""
    return torch.tensor(input is not None)


@kernel("OptionalGetElement", since=15, view="input")
def optional_get_element(input: Any) -> Any:
    """The value of the optional."""
    if input is None:
        raise ValueError("the optional has no value")
    return input
