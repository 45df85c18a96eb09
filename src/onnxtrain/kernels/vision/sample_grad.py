"""GridSample as sums of pixels, which torch can differentiate as often as it is asked to.

Torch's own grid_sample is faster, but not every version of torch differentiates it twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from onnxtrain.kernels.precision import acc

Tap = tuple[Tensor, Tensor]
"""Index and weight of one pixel along an axis, for every sample."""
_REACH = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
_SHARPNESS = -0.75
"""The parameter of cubic interpolation."""


def grid_sample_by_pixels(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:
    """y[n, c, ...] = Σ weight · pixel over the pixels around the coordinates grid[n, ...]."""
    dtype = acc(torch.promote_types(x.dtype, grid.dtype))
    pixels, places = x.to(dtype).flatten(2), grid.to(dtype).flatten(1, -2)
    method = mode.removeprefix("bi")
    axes = [
        list(_taps(places[..., -1 - axis], size, method, padding_mode, not align_corners))
        for axis, size in enumerate(x.shape[2:])
    ]
    total = pixels.new_zeros(*x.shape[:2], places.shape[1])
    for taps in itertools.product(*axes):
        flat = torch.zeros_like(taps[0][0])
        for size, (index, _) in zip(x.shape[2:], taps, strict=True):
            flat = flat * size + index
        weight = math.prod((weight for _, weight in taps[1:]), start=taps[0][1])
        picked = pixels.gather(2, flat.unsqueeze(1).expand(-1, x.shape[1], -1))
        total = total + picked * weight.unsqueeze(1)
    return total.reshape(*x.shape[:2], *grid.shape[1:-1]).to(x.dtype)


def _taps(place: Tensor, size: int, mode: str, padding: str, half: bool) -> Iterator[Tap]:
    """The pixels along one axis that samples at coordinates from -1 to 1 are made of."""
    low, high = (-0.5, size - 0.5) if half else (0.0, size - 1.0)
    place = (place + 1) / 2 * (high - low) + low
    if mode != "cubic":
        place = _padded(place, size, padding, (low, high))
    base = (place.round() if mode == "nearest" else place.floor()).detach()
    for step in _REACH[mode]:
        index = base + step
        weight = _weight((place - index).abs(), mode)
        if mode == "cubic":
            index = _padded(index, size, padding, (low, high))
        inside = (index >= 0) & (index <= size - 1)
        yield index.clamp(0, size - 1).to(torch.int64), weight * inside


def _padded(place: Tensor, size: int, padding: str, borders: tuple[float, float]) -> Tensor:
    """Where a place outside of the image is found: on its border, or mirrored at it."""
    low, high = borders
    if padding == "reflection" and high > low:
        period = 2 * (high - low)
        offset = torch.remainder(place - low, period)
        place = torch.minimum(offset, period - offset) + low
    return place if padding == "zeros" else place.clamp(0, size - 1)


def _weight(distance: Tensor, mode: str) -> Tensor:
    """How much a pixel at a distance from the sample counts."""
    if mode == "nearest":
        return torch.ones_like(distance)
    if mode == "linear":
        return 1 - distance
    a = _SHARPNESS
    near = ((a + 2) * distance - (a + 3)) * distance.square() + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return torch.where(distance <= 1, near, far)
