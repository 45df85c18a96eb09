"""Tensors joined along an axis, and cut along one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axis_of
from onnxtrain.types import MS


@kernel("Concat", until=3)
def concat_1(*inputs: Tensor, axis: int = 1) -> Tensor:
    """The inputs one after the other along an axis."""
    return concat(*inputs, axis=axis)


@kernel("Concat", since=4)
def concat(*inputs: Tensor, axis: int) -> Tensor:
    """The inputs one after the other along an axis; inputs without elements may have any shape."""
    axis = axis_of(axis, inputs[0].ndim)
    parts = [x for x in inputs if x.numel()] or list(inputs)
    if axis and len(parts) > 1 and fast.ready(*parts):
        joined: Tensor | None = fast.load("beside").concat(parts, axis)
        if joined is not None:
            return joined
    return torch.cat(parts, axis)


@kernel("ConcatTraining", domain=MS, outputs=2, host_out=[1])
def concat_training(*inputs: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Concat, and the inputs' sizes along the axis (what SplitTraining needs to go back)."""
    lengths = [x.shape[axis_of(axis, x.ndim)] for x in inputs]
    return concat(*inputs, axis=axis), torch.tensor(lengths, dtype=torch.int64)


@kernel("Split", until=1, view="input", host=["sizes"], outputs=0, needs=["wanted"])
def split_1(
    input: Tensor,
    sizes: list[float] | None = None,
    *,
    axis: int = 0,
    split: tuple[int, ...] | None = None,
    wanted: tuple[bool, ...],
) -> Sequence[Tensor]:
    """The input cut along an axis; the sizes are an attribute or an input of the input's type."""
    parts = split if sizes is None else tuple(int(size) for size in sizes)
    return split_2(input, axis=axis, split=parts, wanted=wanted)


@kernel("Split", since=2, until=12, view="input", outputs=0, needs=["wanted"])
def split_2(
    input: Tensor, *, axis: int = 0, split: tuple[int, ...] | None = None, wanted: tuple[bool, ...]
) -> Sequence[Tensor]:
    """The input cut along an axis into parts of the sizes given as attribute, or of equal size."""
    return _cut(input, axis, split or _equal(input, axis, len(wanted)), len(wanted))


@kernel("Split", since=13, until=17, view="input", host=["split"], outputs=0, needs=["wanted"])
def split_13(
    input: Tensor, split: list[int] | None = None, *, axis: int = 0, wanted: tuple[bool, ...]
) -> Sequence[Tensor]:
    """The input cut along an axis into parts of the given sizes, or of equal size."""
    return _cut(input, axis, split or _equal(input, axis, len(wanted)), len(wanted))


@kernel("Split", since=18, view="input", host=["split"], outputs=0, needs=["wanted"])
def split(
    input: Tensor,
    split: list[int] | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    wanted: tuple[bool, ...],
) -> Sequence[Tensor]:
    """The input cut along an axis into parts of the given sizes, or of equal size but the last."""
    if num_outputs is not None and num_outputs != len(wanted):
        raise ValueError(f"num_outputs is {num_outputs}, but the node has {len(wanted)} outputs")
    if split is None:
        size = input.shape[axis_of(axis, input.ndim)]
        step = math.ceil(size / len(wanted))
        split = [max(0, min(step, size - i * step)) for i in range(len(wanted))]
    return _cut(input, axis, split, len(wanted))


@kernel("SplitTraining", domain=MS, view="input", host=["split"], outputs=0, needs=["wanted"])
def split_training(
    input: Tensor, split: list[int], *, axis: int = 0, wanted: tuple[bool, ...]
) -> Sequence[Tensor]:
    """The input cut along an axis; an empty ``split`` asks for parts of equal size."""
    return _cut(input, axis, split or _equal(input, axis, len(wanted)), len(wanted))


def _equal(x: Tensor, axis: int, count: int) -> list[int]:
    size = x.shape[axis_of(axis, x.ndim)]
    if size % count:
        raise ValueError(f"input cannot be split evenly: axis {axis} has size {size} for {count}")
    return [size // count] * count


def _cut(x: Tensor, axis: int, sizes: Sequence[int], count: int) -> Sequence[Tensor]:
    axis = axis_of(axis, x.ndim)
    if len(sizes) != count or sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise ValueError(
            f"cannot split using {list(sizes)}: axis {axis} has size {x.shape[axis]} "
            f"and there are {count} outputs"
        )
    parts: Sequence[Tensor] = x.split(list(sizes), axis)
    return parts
