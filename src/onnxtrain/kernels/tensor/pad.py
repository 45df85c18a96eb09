"""Tensors made larger (or smaller) at their borders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axes_of, scalar
from onnxtrain.kernels.tensor.movable import picked
from onnxtrain.types import INTS


@kernel("Pad", until=1, view="data")
def pad_1(
    data: Tensor, *, paddings: tuple[int, ...], mode: str = "constant", value: float = 0.0
) -> Tensor:
    """The data between borders whose widths are attributes."""
    return pad(data, paddings, value, mode=mode)


@kernel("Pad", since=2, until=10, view="data")
def pad_2(
    data: Tensor, *, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0
) -> Tensor:
    """The data between borders whose widths are attributes."""
    return pad(data, pads, value, mode=mode)


@kernel("Pad", since=11, view="data", host=["pads", "constant_value", "axes"])
def pad(
    data: Tensor,
    pads: Sequence[int],
    constant_value: Any = None,
    axes: Sequence[int] | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    """The data between borders of a constant, or of its own elements; negative widths cut off.

    ``pads`` has the widths before the data for every axis, then those after it. Cutting alone
    gives a view.
    """
    axes = range(data.ndim) if axes is None else axes_of(axes, data.ndim)
    if len(pads) != 2 * len(axes):
        raise ValueError(f"pads {list(pads)} must have two entries for each of {len(axes)} axes")
    before, after = [0] * data.ndim, [0] * data.ndim
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
        cut = max(-before[axis], 0)
        left = data.shape[axis] - cut - max(-after[axis], 0)
        if left < 0:
            size, least = data.shape[axis], data.shape[axis] - left
            raise ValueError(f"cannot cut {least} off axis {axis}, which has {size} elements")
        data = data.narrow(axis, cut, left) if left != data.shape[axis] else data
    before, after = [max(n, 0) for n in before], [max(n, 0) for n in after]
    if not any(before) and not any(after):
        return data
    if mode == "constant":
        value = 0 if constant_value is None or constant_value == [] else scalar(constant_value)
        return _in_constant(data, before, after, value)
    for axis in range(data.ndim):
        if before[axis] or after[axis]:
            data = picked(data, axis, _source(data, axis, before[axis], after[axis], mode))
    return data


def _in_constant(x: Tensor, before: Sequence[int], after: Sequence[int], value: Any) -> Tensor:
    shape = [b + n + a for b, n, a in zip(before, x.shape, after, strict=True)]
    result = torch.full(shape, value, dtype=x.dtype, device=x.device)
    result[tuple(slice(b, b + n) for b, n in zip(before, x.shape, strict=True))] = x
    return result


def _source(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """For every position of the padded axis, the position of the data whose element it shows."""
    size = x.shape[axis]
    if size == 0:
        raise ValueError(f"mode '{mode}' cannot pad axis {axis}, which has no elements")
    place = torch.arange(-before, size + after, device=x.device)
    if mode == "edge":
        return place.clamp(0, size - 1)
    if mode == "wrap":
        return place.remainder(size)
    if mode == "reflect":
        period = max(2 * (size - 1), 1)
        place = place.remainder(period)
        return torch.minimum(place, period - place) if size > 1 else place
    raise ValueError(f"mode '{mode}' is not one of constant, reflect, edge, wrap")


@kernel("CenterCropPad", since=18, view="input_data", host=["shape"], Tind=INTS)
def center_crop_pad(
    input_data: Tensor, shape: list[int], *, axes: tuple[int, ...] | None = None
) -> Tensor:
    """The middle of the data, or the data in the middle of zeros; odd rests go to the end."""
    chosen = list(range(input_data.ndim)) if axes is None else axes_of(axes, input_data.ndim)
    before, after = [], []
    for axis, size in zip(chosen, shape, strict=True):
        change = size - input_data.shape[axis]
        half = abs(change) // 2 * (1 if change > 0 else -1)
        before.append(half)
        after.append(change - half)
    return pad(input_data, before + after, None, chosen)
