"""Regular parts of a tensor: start, end and step per axis."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axes_of
from onnxtrain.kernels.tensor.movable import movable, moved
from onnxtrain.types import MS

_BOUNDS = ["starts", "ends", "axes", "steps"]
_TO_THE_END = (2**31 - 1, 2**63 - 1)
"""Values of ``ends`` that mean the end of the axis in the direction of the step."""


@kernel("Slice", until=9, view="data")
def slice_1(
    data: Tensor,
    *,
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    axes: tuple[int, ...] | None = None,
) -> Tensor:
    """data[start:end] along the axes, given as attributes."""
    return slice_(data, starts, ends, axes)


@kernel("Slice", since=10, view="data", host=_BOUNDS)
def slice_(
    data: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:
    """data[start:end:step] along the axes; a view unless a step is negative."""
    part, backwards = _part(data, starts, ends, axes, steps)
    return _flipped(part, backwards)


@kernel("SliceGrad", domain=MS, host=["shape", *_BOUNDS])
def slice_grad(
    dy: Tensor,
    shape: list[int],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:
    """dx[start:end:step] = dy, zero elsewhere; dy's elements count, not its shape."""
    dx = dy.new_zeros(shape)
    part, backwards = _part(dx, starts, ends, axes, steps)
    if part.numel() != dy.numel():
        raise ValueError(
            f"dY has {dy.numel()} elements, the slice of {shape} has shape {list(part.shape)}"
        )
    values = dy.reshape(part.shape)
    part.copy_(_flipped(values, backwards))
    return dx


def _part(
    x: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> tuple[Tensor, list[int]]:
    """The slice as a view in ascending order, and the axes that must be flipped in it."""
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ValueError(
            "starts, ends, axes and steps must have the same length, "
            f"got {len(starts)}, {len(ends)}, {len(axes)} and {len(steps)}"
        )
    if x.ndim == 0:
        raise ValueError("cannot slice scalars")
    places = [slice(None)] * x.ndim
    backwards = []
    for axis, start, end, step in zip(axes_of(axes, x.ndim), starts, ends, steps, strict=True):
        if step == 0:
            raise ValueError("'step' value cannot be 0")
        size = x.shape[axis]
        stop = None if end in _TO_THE_END else end
        # A start before the first element means that element, in either direction.
        taken = range(*slice(max(start, -size), stop, step).indices(size))
        if step < 0:
            backwards.append(axis)
            taken = taken[::-1]
        places[axis] = slice(taken.start, max(taken.stop, taken.start), taken.step)
    return x[tuple(places)], backwards


def _flipped(x: Tensor, axes: list[int]) -> Tensor:
    return moved(movable(x).flip(axes), x.dtype) if axes else x
