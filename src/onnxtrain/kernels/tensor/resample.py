"""Resizing one axis as a linear map: which elements each output reads, and with which weights."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from onnxtrain.kernels.tensor.indices import add_at
from onnxtrain.kernels.tensor.movable import picked


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How outputs read inputs, the same for all axes; the fields are attributes of Resize.

    Attributes:
        mode: ``nearest``, ``linear`` or ``cubic``.
        coordinates: How a position of the output becomes one of the input.
        nearest_mode: How ``nearest`` rounds; ``by_scale`` is down, or up where the axis shrinks.
        cubic_a: The coefficient of ``cubic``.
        exclude_outside: Whether weights outside of the input count as zero.
        antialias: Whether the filter grows when the output is smaller.
    """

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclasses.dataclass(frozen=True)
class Axis:
    """The sizes of one resized axis.

    Attributes:
        index: Which axis it is.
        size: Its size in the input.
        out_size: Its size in the output.
        scale: The factor between them, before rounding.
        start: Where the region of interest starts, as a part of the input.
        end: Where it ends.
    """

    index: int
    size: int
    out_size: int
    scale: float
    start: float = 0.0
    end: float = 1.0


@dataclasses.dataclass(frozen=True)
class Taps:
    """One axis of the map: out[o] = sum over k of weights[k, o] * in[places[k, o]].

    Attributes:
        axis: The axis.
        places: Positions in the input, inside of it.
        weights: Their weights in float64, or None if there is one of weight 1 per output.
        outside: Mask of the outputs that lie outside of the input, or None.
    """

    axis: Axis
    places: Tensor
    weights: Tensor | None
    outside: Tensor | None

    def apply(self, x: Tensor) -> Tensor:
        """The map."""
        if self.weights is None:
            return picked(x, self.axis.index, self.places[0])
        weights = self._shaped(self.weights, x)
        total = x.index_select(self.axis.index, self.places[0]) * weights[0]
        for place, weight in zip(self.places[1:], weights[1:], strict=True):
            total = total.addcmul_(x.index_select(self.axis.index, place), weight)
        return total

    def transposed(self, dy: Tensor, *, ordered: bool) -> Tensor:
        """The transposed map, which turns gradients of outputs into gradients of inputs."""
        shape = list(dy.shape)
        shape[self.axis.index] = self.axis.size
        dx = dy.new_zeros(shape)
        weights = None if self.weights is None else self._shaped(self.weights, dy)
        for k, place in enumerate(self.places):
            part = dy if weights is None else dy * weights[k]
            place = place.reshape([-1 if i == self.axis.index else 1 for i in range(dy.ndim)])
            add_at(dx, self.axis.index, place.expand_as(part), part, ordered=ordered)
        return dx

    def _shaped(self, weights: Tensor, x: Tensor) -> Tensor:
        """The weights in the type of x, broadcasting along the axis."""
        ones = [1] * (x.ndim - self.axis.index - 1)
        return weights.to(x.dtype).reshape(*weights.shape, *ones)


def taps(axis: Axis, how: Sampling, device: torch.device) -> Taps:
    """The map of one axis, computed on the device in float64."""
    at = source(axis, how.coordinates, device)
    outside = None
    if how.coordinates == "tf_crop_and_resize":
        outside = (at < 0) | (at > axis.size - 1)
    if how.mode == "nearest":
        places = _rounded(at, how.nearest_mode, axis.scale).to(torch.int64)
        return Taps(axis, places.clamp(0, axis.size - 1)[None], None, outside)
    places, weights = _filter(at, axis, how)
    if how.exclude_outside:
        weights = weights * ((places >= 0) & (places < axis.size))
        weights = weights / weights.sum(0)
    return Taps(axis, places.clamp(0, axis.size - 1), weights, outside)


def source(axis: Axis, coordinates: str, device: torch.device) -> Tensor:
    """For every position of the output, the position in the input."""
    x = torch.arange(axis.out_size, dtype=torch.float64, device=device)
    last, width = axis.size - 1, axis.scale * axis.size
    if coordinates in ("half_pixel", "half_pixel_symmetric"):
        symmetric = coordinates == "half_pixel_symmetric"
        offset = axis.size / 2 * (1 - axis.out_size / width) if symmetric else 0.0
        return offset + (x + 0.5) / axis.scale - 0.5
    if coordinates == "pytorch_half_pixel":
        return (x + 0.5) / axis.scale - 0.5 if axis.out_size > 1 else torch.zeros_like(x)
    if coordinates == "align_corners":
        return torch.zeros_like(x) if width == 1 else x * (last / (width - 1))
    if coordinates == "asymmetric":
        return x / axis.scale
    if coordinates == "tf_half_pixel_for_nn":
        return (x + 0.5) / axis.scale
    if coordinates == "tf_crop_and_resize":
        if axis.out_size == 1:
            return torch.full_like(x, 0.5 * (axis.start + axis.end) * last)
        return axis.start * last + x * (axis.end - axis.start) * last / (width - 1)
    raise ValueError(f"coordinate_transformation_mode '{coordinates}' is unknown")


def _rounded(at: Tensor, mode: str, scale: float) -> Tensor:
    if mode == "by_scale":
        return torch.ceil(at) if scale < 1 else torch.floor(at)
    if mode == "round_prefer_floor":
        return torch.ceil(at - 0.5)
    if mode == "round_prefer_ceil":
        return torch.floor(at + 0.5)
    if mode == "floor":
        return torch.floor(at)
    if mode == "ceil":
        return torch.ceil(at)
    raise ValueError(f"nearest_mode '{mode}' is unknown")


def _filter(at: Tensor, axis: Axis, how: Sampling) -> tuple[Tensor, Tensor]:
    """Places around every source position and the filter's weights at their distances."""
    stretch = min(axis.scale, 1.0) if how.antialias else 1.0
    support = 2 if how.mode == "cubic" else 1
    first = math.floor(-support / stretch) + 1
    offsets = torch.arange(first, 2 - first, dtype=torch.float64, device=at.device)
    places = torch.ceil(at) - 1 + offsets[:, None]
    distance = (places - at).abs() * stretch
    if how.mode == "linear":
        weights = (1 - distance).clamp(min=0)
    elif how.mode == "cubic":
        weights = _cubic(distance, how.cubic_a)
    else:
        raise ValueError(f"mode '{how.mode}' is not one of nearest, linear, cubic")
    if how.antialias:
        weights = weights / weights.sum(0)
    return places.to(torch.int64), weights


def _cubic(d: Tensor, a: float) -> Tensor:
    """Keys' piecewise cubic convolution kernel of the distance."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0.0))
