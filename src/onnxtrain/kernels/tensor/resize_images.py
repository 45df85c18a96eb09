"""Ways to resize images that are quicker than maps axis by axis, and keep their layout."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from onnxtrain.kernels.layout import layout_of
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.tensor.resample import Axis, Sampling, taps

_HALF = ("half_pixel", "pytorch_half_pixel")
aten = torch.ops.aten


def _changing(x: Tensor, axes: Sequence[Axis]) -> dict[int, Axis] | None:
    """The axes that change, if all of them are rows and columns of images."""
    found = {a.index: a for a in axes if a.scale != 1 or a.out_size != a.size}
    if x.ndim != 4 or not found or not x.numel() or not {2, 3} >= found.keys():
        return None
    return found


def repeats(x: Tensor, axes: Sequence[Axis], how: Sampling) -> tuple[int, int] | None:
    """How often rows and columns of images are repeated, if that is all that happens to them."""
    changing = _changing(x, axes) if how.mode == "nearest" else None
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


class Steps(NamedTuple):
    """How torch goes through images: whether corners are aligned, and the two factors."""

    align_corners: bool
    factors: tuple[float, float]


def bilinear(x: Tensor, axes: Sequence[Axis], how: Sampling) -> Steps | None:
    """Whether torch's own kernel computes this, on a GPU, where it is one launch."""
    plain = how.mode == "linear" and not how.antialias and not how.exclude_outside
    changing = _changing(x, axes) if plain and _is_served(x) else None
    if changing is None or not all(_is_alike(axis, how) for axis in changing.values()):
        return None
    down, across = (float(changing[at].scale) if at in changing else 1.0 for at in (2, 3))
    return Steps(how.coordinates == "align_corners", (down, across))


def _is_served(x: Tensor) -> bool:
    return x.is_cuda and x.is_floating_point()


def _is_alike(axis: Axis, how: Sampling) -> bool:
    """Whether torch reads the same places of an axis."""
    if how.coordinates == "align_corners":
        return axis.out_size == axis.scale * axis.size
    return how.coordinates in _HALF and (axis.out_size > 1 or how.coordinates == "half_pixel")


def interpolated(x: Tensor, shape: Sequence[int], steps: Steps) -> Tensor:
    """Images resized to a shape; 16-bit ones are computed in float32 by torch itself."""
    align, factors = steps
    result: Tensor = aten.upsample_bilinear2d(x, list(shape[2:]), align, *factors)
    return result


def interpolated_back(dy: Tensor, x: Tensor, steps: Steps) -> Tensor:
    """Its gradient, which is added up in any order."""
    align, factors = steps
    sizes = list(dy.shape[2:]), list(x.shape)
    result: Tensor = aten.upsample_bilinear2d_backward(dy, *sizes, align, *factors)
    return result
