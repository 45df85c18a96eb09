"""Resize, its older form Upsample, and the gradient: linear maps axis by axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor import resize_images as images
from onnxtrain.kernels.tensor.axes import axes_of
from onnxtrain.kernels.tensor.resample import Axis, Sampling, Taps, taps
from onnxtrain.types import FIXED, FLOATS, MS


@kernel("Upsample", until=6, T=FIXED)
def upsample_1(
    x: Tensor, *, height_scale: float, width_scale: float, mode: str = "nearest"
) -> Tensor:
    """The image larger by two factors, given as attributes."""
    scales = [1.0] * (x.ndim - 2) + [height_scale, width_scale]
    return resize_10(x, scales, mode="linear" if mode == "bilinear" else mode)


@kernel("Upsample", since=7, until=8, T=FIXED)
def upsample_7(x: Tensor, *, scales: tuple[float, ...], mode: str = "nearest") -> Tensor:
    """Larger by one factor per axis, given as attribute."""
    return resize_10(x, scales, mode=mode)


@kernel("Resize", since=10, until=10, host=["scales"], T=FIXED)
@kernel("Upsample", since=9, host=["scales"], T=FIXED)
def resize_10(x: Tensor, scales: Sequence[float], *, mode: str = "nearest") -> Tensor:
    """Output position i reads input position i / scale, or between two.

    The nearest position is rounded down, or up where the axis shrinks.
    """
    axes = _scaled(x.shape, range(x.ndim), scales)
    return _resize(x, axes, Sampling(mode, coordinates="asymmetric", nearest_mode="by_scale"))


@kernel("Resize", since=11, host=["roi", "scales", "sizes"], T1=FIXED)
def resize(
    x: Tensor,
    roi: list[float] | None = None,
    scales: list[float] | None = None,
    sizes: list[int] | None = None,
    *,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """Every output is a weighted sum of the inputs around its place in the input."""
    chosen = list(range(x.ndim)) if axes is None else axes_of(axes, x.ndim)
    if sizes:
        resized = _sized(x.shape, chosen, sizes, keep_aspect_ratio_policy)
    else:
        resized = _scaled(x.shape, chosen, scales or [])
    how = Sampling(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
    )
    return _resize(x, _in_region(resized, roi, how), how, extrapolation_value)


@kernel("ResizeGrad", domain=MS, host=["roi", "scales"], needs=["deterministic"], T=FLOATS)
def resize_grad(
    dy: Tensor,
    x: Tensor,
    roi: list[float] | None = None,
    scales: list[float] | None = None,
    *,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    deterministic: bool,
) -> Tensor:
    """The transposed map of Resize applied to dy; only the shape of x matters."""
    if not dy.numel():
        return dy.new_zeros(x.shape)
    chosen = list(range(x.ndim)) if axes is None else axes_of(axes, x.ndim)
    if scales:
        resized = _scaled(x.shape, chosen, scales)
    else:
        sizes = [dy.shape[axis] for axis in chosen]
        resized = _sized(x.shape, chosen, sizes, "stretch")
    how = Sampling(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
    )
    within = _in_region(resized, roi, how)
    if list(dy.shape) == _shape(x, within):
        if (factors := images.repeats(x, within, how)) is not None:
            return images.summed(dy, factors)
        repeatable = not deterministic or not dy.is_cuda
        if repeatable and (steps := images.linear(x, within, how)) is not None:
            return images.interpolated_back(dy, x, steps)
    maps = _maps(within, how, dy.device)
    grad = widen(dy) if maps else dy.clone()
    for part in reversed(maps):
        if part.outside is not None:
            grad = grad.masked_fill(_along(part.outside, part.axis, grad), 0)
        grad = part.transposed(grad, ordered=deterministic)
    return grad.to(dy.dtype)


def _scaled(shape: Sequence[int], axes: Sequence[int], scales: Sequence[float]) -> list[Axis]:
    """Axes resized by factors; sizes are rounded down in float32, like shape inference does."""
    if len(scales) != len(axes):
        raise ValueError(f"scales {list(scales)} must have one entry for each of {len(axes)} axes")
    return [
        Axis(a, shape[a], int(np.float32(shape[a]) * np.float32(scale)), float(scale))
        for a, scale in zip(axes, scales, strict=True)
    ]


def _sized(
    shape: Sequence[int], axes: Sequence[int], sizes: Sequence[int], policy: str
) -> list[Axis]:
    """Axes resized to given sizes, or to the nearest ones that keep the aspect ratio."""
    if len(sizes) != len(axes):
        raise ValueError(f"sizes {list(sizes)} must have one entry for each of {len(axes)} axes")
    factors = [size / shape[a] if shape[a] else 1.0 for a, size in zip(axes, sizes, strict=True)]
    if policy == "stretch":
        return [Axis(a, shape[a], n, f) for a, n, f in zip(axes, sizes, factors, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise ValueError(f"keep_aspect_ratio_policy '{policy}' is unknown")
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [Axis(a, shape[a], int(factor * shape[a] + 0.5), factor) for a in axes]


def _in_region(axes: list[Axis], roi: Sequence[float] | None, how: Sampling) -> list[Axis]:
    """The axes with their part of the region of interest, if the coordinates have one."""
    if how.coordinates != "tf_crop_and_resize":
        return axes
    if not roi or len(roi) != 2 * len(axes):
        raise ValueError(f"roi {roi} must have a start and an end for each of {len(axes)} axes")
    return [
        Axis(a.index, a.size, a.out_size, a.scale, start, end)
        for a, start, end in zip(axes, roi, roi[len(axes) :], strict=False)
    ]


def _maps(axes: list[Axis], how: Sampling, device: torch.device) -> list[Taps]:
    """The maps of the axes that change."""
    changing = [
        a for a in axes if a.scale != 1 or a.out_size != a.size or (a.start, a.end) != (0, 1)
    ]
    return [taps(axis, how, device) for axis in changing]


def _shape(x: Tensor, axes: Sequence[Axis]) -> list[int]:
    """The shape of the result."""
    shape = list(x.shape)
    for axis in axes:
        shape[axis.index] = axis.out_size
    return shape


def _resize(x: Tensor, axes: list[Axis], how: Sampling, extrapolation: float = 0.0) -> Tensor:
    shape = _shape(x, axes)
    if 0 in shape:
        return x.new_empty(shape)
    if not x.numel():
        raise ValueError(f"nothing of shape {tuple(x.shape)} cannot become {tuple(shape)}")
    if (factors := images.repeats(x, axes, how)) is not None:
        return images.repeated(x, factors)
    if (steps := images.linear(x, axes, how)) is not None:
        return images.interpolated(x, shape, steps)
    exact = how.mode == "nearest"
    whole = not x.dtype.is_floating_point
    result = x if exact else x.to(torch.float64) if whole else widen(x)
    maps = _maps(axes, how, x.device)
    for part in maps:
        result = part.apply(result)
    for part in maps:
        if part.outside is not None:
            outside = _along(part.outside, part.axis, result)
            result = result.masked_fill(outside, extrapolation)
    if not maps:
        return x.clone()
    return result if exact else _stored(result, x.dtype)


def _stored(result: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to the type; whole numbers to the nearest even and inside of its range."""
    if dtype.is_floating_point:
        return result.to(dtype)
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return result.round().clamp(low, high).to(dtype)


def _along(mask: Tensor, axis: Axis, x: Tensor) -> Tensor:
    return mask.reshape([-1 if i == axis.index else 1 for i in range(x.ndim)])
