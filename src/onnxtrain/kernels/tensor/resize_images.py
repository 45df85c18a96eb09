"""Ways to resize images that are quicker than maps axis by axis, and keep their layout."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from onnxtrain.kernels.layout import IMAGES, layout_of
from onnxtrain.kernels.precision import acc, widen
from onnxtrain.kernels.tensor.resample import Axis, Sampling, source, taps

_HALF = ("half_pixel", "pytorch_half_pixel")
aten = torch.ops.aten
CLOSE = 1e-6
"""How far a position may be off, in pixels; a weight is off by as much."""
SHRUNK = 0.5
"""Which part of an image is so few elements that the whole is not worth a copy in float64."""


def _changing(x: Tensor, axes: Sequence[Axis]) -> dict[int, Axis] | None:
    """The axes that change, if none of them is that of samples or channels."""
    found = {a.index: a for a in axes if a.scale != 1 or a.out_size != a.size}
    return found if found and x.numel() and min(found) >= 2 else None


def repeats(x: Tensor, axes: Sequence[Axis], how: Sampling) -> tuple[int, int] | None:
    """How often rows and columns of images are repeated, if that is all that happens to them."""
    changing = _changing(x, axes) if how.mode == "nearest" and x.ndim == IMAGES else None
    if changing is None or not all(_is_repeated(axis, how) for axis in changing.values()):
        return None
    down, across = (
        changing[at].out_size // changing[at].size if at in changing else 1 for at in (2, 3)
    )
    return down, across


@functools.lru_cache(1024)
def _is_repeated(axis: Axis, how: Sampling) -> bool:
    """Whether every element of an axis is read the same number of times in a row."""
    if axis.size == 0 or axis.out_size < axis.size or axis.out_size % axis.size:
        return False
    found = taps(axis, how, torch.device("cpu"))
    expected = torch.arange(axis.size).repeat_interleave(axis.out_size // axis.size)
    return found.outside is None and torch.equal(found.places[0], expected)


def repeated(x: Tensor, factors: tuple[int, int]) -> Tensor:
    """Images whose rows and columns are repeated, in memory of their own; they lie as before."""
    down, across = factors
    last = layout_of(x) is torch.channels_last
    images = x.permute(0, 2, 3, 1) if last else x[..., None].flatten(0, 1)
    samples, height, width, depth = images.shape
    spread = images[:, :, None, :, None].expand(samples, height, down, width, across, depth)
    # a view of x would do where an axis has one element, or nothing is repeated
    whole = spread.clone(memory_format=torch.contiguous_format)
    result = whole.view(samples, height * down, width * across, depth)
    if last:
        return result.permute(0, 3, 1, 2)
    return result.view(*x.shape[:2], height * down, width * across)


def summed(dy: Tensor, factors: tuple[int, int]) -> Tensor:
    """The gradient of repeated images: windows of a mean whose divisor is 1."""
    windows = widen(dy) if dy.device.type == "cpu" else dy
    return torch.nn.functional.avg_pool2d(windows, factors, divisor_override=1).to(dy.dtype)


_LINEAR = {
    3: (aten.upsample_linear1d, aten.upsample_linear1d_backward),
    4: (aten.upsample_bilinear2d, aten.upsample_bilinear2d_backward),
    5: (aten.upsample_trilinear3d, aten.upsample_trilinear3d_backward),
}
"""Torch's kernels and their gradients, by the number of axes."""


class Steps(NamedTuple):
    """How torch goes through lines, images or volumes: whether corners are aligned, and factors.

    ``dtype`` is the type that it does so in, which is that of its positions, too.
    """

    align_corners: bool
    factors: tuple[float, ...]
    dtype: torch.dtype


def linear(x: Tensor, axes: Sequence[Axis], how: Sampling) -> Steps | None:
    """Whether torch's own kernel computes this, in one pass over the images."""
    plain = how.mode == "linear" and not how.antialias and not how.exclude_outside
    changing = _changing(x, axes) if plain and _is_served(x) else None
    if changing is None or not all(_is_alike(axis, how) for axis in changing.values()):
        return None
    places = range(2, x.ndim)
    factors = tuple(float(changing[at].scale) if at in changing else 1.0 for at in places)
    dtype = x.dtype if x.is_cuda else acc(x.dtype)
    exact = x.is_cuda or dtype is torch.float64
    if not exact and not all(_is_exact(axis, how) for axis in changing.values()):
        if math.prod(a.out_size / a.size for a in changing.values()) < SHRUNK:
            return None
        dtype = torch.float64
    return Steps(how.coordinates == "align_corners", factors, dtype)


def _is_served(x: Tensor) -> bool:
    there = x.ndim in _LINEAR if x.is_cpu else x.is_cuda and x.ndim == IMAGES
    return there and x.is_floating_point()


def _is_alike(axis: Axis, how: Sampling) -> bool:
    """Whether torch reads the same places of an axis."""
    if how.coordinates == "align_corners":
        return axis.out_size == axis.scale * axis.size
    if axis.out_size == axis.size and axis.scale != 1:
        return False  # torch goes by the sizes and copies
    return how.coordinates in _HALF and (axis.out_size > 1 or how.coordinates == "half_pixel")


@functools.lru_cache(1024)
def _is_exact(axis: Axis, how: Sampling) -> bool:
    """Whether positions that torch computes in float32 are as good as those in float64."""
    places = torch.arange(axis.out_size, dtype=torch.float32)
    if how.coordinates == "align_corners":
        found = places * ((axis.size - 1) / max(1, axis.out_size - 1))
    else:
        found = (places + 0.5) * (1 / axis.scale) - 0.5
    exact = source(axis, how.coordinates, torch.device("cpu"))
    return bool((found - exact).abs().max() <= CLOSE)


def interpolated(x: Tensor, shape: Sequence[int], steps: Steps) -> Tensor:
    """Images (lines, volumes) resized to a shape, which lie as before."""
    align, factors, dtype = steps
    result: Tensor = _LINEAR[x.ndim][0](x.to(dtype), list(shape[2:]), align, *factors)
    return result.to(x.dtype)


def interpolated_back(dy: Tensor, x: Tensor, steps: Steps) -> Tensor:
    """Its gradient; on a GPU it is added up in any order."""
    align, factors, dtype = steps
    sizes = list(dy.shape[2:]), list(x.shape)
    result: Tensor = _LINEAR[dy.ndim][1](dy.to(dtype), *sizes, align, *factors)
    return result.to(dy.dtype)
