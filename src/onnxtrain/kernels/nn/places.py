"""Where in an image the maxima of a pool were found."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

NOWHERE = -1
"""Where the maximum of nothing but padding is found, as in onnxruntime and ONNX's reference."""


def unravel(flat: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Coordinates of row-major places."""
    found = []
    for size in reversed(sizes[1:]):
        found.append(flat % size)
        flat = flat // size
    return [flat, *reversed(found)]


def unpadded(
    coordinates: Sequence[Tensor], begin: Sequence[int], sizes: Sequence[int]
) -> list[Tensor]:
    """Coordinates without padding; a window of nothing but -inf may have found the padding."""
    return [
        (place - first).clamp(0, size - 1)
        for place, first, size in zip(coordinates, begin, sizes, strict=True)
    ]


def flattened(coordinates: Sequence[Tensor], sizes: Sequence[int], storage_order: int) -> Tensor:
    """Places of coordinates within a channel: row-major (0) or column-major (1)."""
    pairs = list(zip(coordinates, sizes, strict=True))
    if storage_order:
        pairs.reverse()
    place, _ = pairs[0]
    for coordinate, size in pairs[1:]:
        place = place * size + coordinate
    return place


def plane_starts(indices: Tensor, sizes: Sequence[int]) -> Tensor:
    """Where each sample's channel begins in the whole tensor."""
    batch, channels = indices.shape[:2]
    size = max(math.prod(sizes), 1)  # planes without elements may begin anywhere
    starts = torch.arange(0, batch * channels * size, size, device=indices.device)
    return starts.view(batch, channels, *[1] * len(sizes))


def inside(indices: Tensor, count: int) -> Tensor:
    """Flat places in [0, count); one outside is an error where that costs no wait for the device.

    On a GPU it wraps around, so that no memory outside of the image is ever touched. What lies
    ``NOWHERE`` goes to place 0.
    """
    if indices.is_cuda:
        return indices.clamp(min=0).remainder(count) if count else indices
    if indices.numel():
        low, high = (int(end) for end in indices.aminmax())
        if low < NOWHERE or high >= count:
            raise ValueError(f"index {low if low < NOWHERE else high} is out of range [0, {count})")
    return indices.clamp(min=0)
