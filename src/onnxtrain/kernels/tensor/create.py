"""Tensors from nothing but numbers: constants, ranges, one-hot vectors, triangles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axis_of, scalar
from onnxtrain.kernels.tensor.movable import movable
from onnxtrain.types import FIXED, FLOATS, MS, DataType

RANGE_TYPES = FLOATS | {DataType.INT16, DataType.INT32, DataType.INT64}


@kernel("Constant", needs=["device"])
def constant(
    *,
    value: Any = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
    sparse_value: Any = None,
    device: torch.device,
) -> Any:
    """The value of whichever attribute is there; strings are numpy arrays of objects."""
    if value is not None:
        # A copy, because the next kernel may overwrite its input.
        return value.clone() if isinstance(value, Tensor) else value
    for single, dtype in ((value_int, torch.int64), (value_float, torch.float32)):
        if single is not None:
            return torch.full((), single, dtype=dtype, device=device)
    for vector, dtype in ((value_ints, torch.int64), (value_floats, torch.float32)):
        if vector is not None:
            return torch.tensor(vector, dtype=dtype, device=device)
    for text in (value_string, value_strings):
        if text is not None:
            return np.array(text, dtype=object)
    raise ValueError(
        "a constant needs one of value, value_int(s), value_float(s) and value_string(s)"
        + (", sparse_value is not supported" if sparse_value is not None else "")
    )


@kernel("ConstantOfShape", since=9, host=["input"], needs=["device"])
def constant_of_shape(
    input: list[int], *, value: Tensor | None = None, device: torch.device
) -> Tensor:
    """One value everywhere (float32 zero by default)."""
    if value is None:
        return torch.zeros(input, dtype=torch.float32, device=device)
    return torch.empty(input, dtype=value.dtype, device=device).copy_(value.reshape(()))


@kernel("EyeLike", since=9, T1=FIXED, T2=FIXED)
def eye_like(input: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """Ones where column = row + k, in the shape of a matrix."""
    if input.ndim != 2:
        raise ValueError(f"input must be a matrix, got shape {list(input.shape)}")
    to = input.dtype if dtype is None else to_torch(dtype)
    result = torch.zeros(input.shape, dtype=to, device=input.device)
    if -input.shape[0] < k < input.shape[1]:
        result.diagonal(k).fill_(1)
    return result


def range_of(dtype: torch.dtype) -> Callable[..., Tensor]:
    """The kernel of Range for one type, since host values do not tell theirs."""

    def range_(
        start: Any, limit: Any, delta: Any, *, stash_type: int = 1, device: torch.device
    ) -> Tensor:
        """start + i*delta, for i < ceil((limit - start) / delta)."""
        start, limit, delta = scalar(start), scalar(limit), scalar(delta)
        if delta == 0:
            raise ValueError("delta must not be 0")
        if dtype.is_floating_point:
            count = max(math.ceil((limit - start) / delta), 0)
            steps = torch.arange(count, dtype=torch.float64, device=device)
        else:
            count = max(-((start - limit) // delta), 0)
            steps = torch.arange(count, device=device)
        values: Tensor = (steps * delta + start).to(dtype)
        return values

    return range_


for _dtype in sorted(RANGE_TYPES):
    kernel("Range", since=11, host=["start", "limit", "delta"], needs=["device"], T=[_dtype])(
        range_of(to_torch(_dtype))
    )


@kernel("OneHot", since=9, until=10, host=["depth"])
def one_hot_9(indices: Tensor, depth: Any, values: Tensor, *, axis: int = -1) -> Tensor:
    """values[1] where the index is met, values[0] elsewhere; negative indices meet nothing."""
    return _one_hot(indices.to(torch.int64), int(scalar(depth)), values, axis)


@kernel("OneHot", since=11, host=["depth"])
def one_hot(indices: Tensor, depth: Any, values: Tensor, *, axis: int = -1) -> Tensor:
    """values[1] where the index is met, values[0] elsewhere; negative indices count from the end.

    An index out of range meets nothing.
    """
    classes = int(scalar(depth))
    whole = indices.to(torch.int64)
    return _one_hot(torch.where(whole < 0, whole + classes, whole), classes, values, axis)


def _one_hot(indices: Tensor, classes: int, values: Tensor, axis: int) -> Tensor:
    axis = axis_of(axis, indices.ndim + 1)
    shape = [classes if i == axis else 1 for i in range(indices.ndim + 1)]
    steps = torch.arange(classes, device=indices.device).reshape(shape)
    off, on = movable(values).unbind()
    return torch.where(indices.unsqueeze(axis) == steps, on, off).view(values.dtype)


@kernel("Trilu", domain=MS, host=["k"])
@kernel("Trilu", since=14, host=["k"])
def trilu(input: Tensor, k: Any = None, *, upper: int = 1) -> Tensor:
    """The part of every matrix on and above (or below) its k-th diagonal, zeros elsewhere."""
    diagonal = 0 if k is None else int(scalar(k))
    cut = torch.triu if upper else torch.tril
    return cut(movable(input), diagonal).view(input.dtype)
