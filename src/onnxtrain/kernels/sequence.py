"""Sequences (lists of tensors) and optionals (a value or None)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axis_of, scalar
from onnxtrain.types import OWN, DataType


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
    if not count:
        raise ValueError("the sequence has no elements")
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
    if split is None and not keepdims:
        return list(input.unbind(axis))
    if not isinstance(split, list):  # torch makes one chunk of nothing
        return list(input.split(split or 1, axis)) if input.shape[axis] else []
    if sum(split) != input.shape[axis]:
        raise ValueError(f"split {split} does not add up to {input.shape[axis]}, the axis's size")
    return list(input.split(split, axis))


@kernel("ConcatFromSequence", since=11)
def concat_from_sequence(
    input_sequence: Sequence[Tensor], *, axis: int, new_axis: int = 0
) -> Tensor:
    """All elements one after the other along an axis, which is a new one if ``new_axis``."""
    if not input_sequence:
        raise ValueError("the sequence has no elements to join")
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


@kernel("NestedSum", domain=OWN, view="values")
def nested_sum(*values: Any) -> Any:
    """Sequences or optionals of the same form, added element by element."""
    return functools.reduce(_added, values)


def _added(a: Any, b: Any) -> Any:
    if isinstance(a, list):
        return [x + y for x, y in zip(a, b, strict=True)]
    return None if a is None or b is None else a + b


@kernel("NestedShapes", domain=OWN, host_out=[0])
def nested_shapes(value: Any) -> Tensor:
    """What ``NestedZeros`` needs: how many tensors there are, then rank and sizes of each."""
    if value is None:
        return torch.tensor([-1])
    tensors = value if isinstance(value, list) else [value]
    numbers = [len(tensors)]
    for tensor in tensors:
        numbers += [tensor.ndim, *tensor.shape]
    return torch.tensor(numbers)


@kernel("NestedZeros", domain=OWN, host=["shapes"], needs=["device"])
def nested_zeros(
    shapes: list[int], *, dtype: int, sequence: int = 1, optional: int = 0, device: torch.device
) -> Any:
    """Zeros in the form that the shapes describe."""
    if shapes[0] < 0:
        return None
    tensors, at = [], 1
    for _ in range(shapes[0]):
        end = at + 1 + shapes[at]
        tensors.append(torch.zeros(shapes[at + 1 : end], dtype=to_torch(dtype), device=device))
        at = end
    return tensors if sequence else tensors[0]


@kernel("SequenceAddAt", domain=OWN, view="sequence", host=["position"])
def sequence_add_at(sequence: Sequence[Tensor], position: Any, tensor: Tensor) -> list[Tensor]:
    """The sequence with a tensor added to its element at a position."""
    at = _position(position, len(sequence))
    return [*sequence[:at], sequence[at] + tensor, *sequence[at + 1 :]]


@kernel("SequenceSizes", domain=OWN, host_out=[0])
def sequence_sizes(sequence: Sequence[Tensor], *, axis: int = 0) -> Tensor:
    """The size of each element along an axis."""
    return torch.tensor([tensor.shape[axis] for tensor in sequence], dtype=torch.int64)


@kernel("SequenceJoin", domain=OWN, host=["shape"], needs=["device", "out_types"])
def sequence_join(
    sequence: Sequence[Tensor],
    shape: list[int],
    *,
    axis: int = 0,
    new_axis: int = 0,
    device: torch.device,
    out_types: Any,
) -> Tensor:
    """ConcatFromSequence, and zeros of the given shape if there is nothing to join."""
    if not sequence:
        return torch.zeros(shape, dtype=to_torch(out_types[0][0]), device=device)
    return concat_from_sequence(sequence, axis=axis, new_axis=new_axis)


@kernel("SequenceConcat", domain=OWN, view={"first": 0, "second": 0})
def sequence_concat(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
    """The elements of one sequence after those of another."""
    return [*first, *second]


@kernel("SequenceCut", domain=OWN, view="sequence", host=["count"], outputs=2)
def sequence_cut(sequence: Sequence[Tensor], count: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The sequence without its last elements, and those."""
    at = len(sequence) - int(scalar(count))
    if at < 0:
        raise ValueError(f"cannot take {scalar(count)} elements off {len(sequence)}")
    return list(sequence[:at]), list(sequence[at:])
