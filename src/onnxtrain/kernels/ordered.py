"""Running and scattered combinations in an order that is the same in every run.

On CUDA torch's own scans and scattered products combine numbers in whatever order blocks finish.
Here each pass combines neighbours at a distance, which doubles from pass to pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Combine = Callable[[Tensor, Tensor], Tensor]


def scanned(x: Tensor, dim: int, combine: Combine) -> Tensor:
    """y_j = x_0 ∘ x_1 ∘ … ∘ x_j along an axis."""
    size, distance = x.shape[dim], 1
    while distance < size:
        ready = x.narrow(dim, 0, distance)
        later = x.narrow(dim, distance, size - distance)
        x = torch.cat([ready, combine(x.narrow(dim, 0, size - distance), later)], dim)
        distance *= 2
    return x


def combine_at(total: Tensor, axis: int, index: Tensor, values: Tensor, combine: Combine) -> None:
    """total[m with m[axis] replaced by index[m]] ∘= values[m], in place.

    Updates are sorted by their places; among equal ones a scan leaves the result at the last.
    """
    if not values.numel():
        return
    places, order = _places(total, axis, index).sort(stable=True)
    found, distance = values.reshape(-1)[order], 1
    while distance < len(found):
        same = places[distance:] == places[:-distance]
        joined = torch.where(same, combine(found[:-distance], found[distance:]), found[distance:])
        found = torch.cat([found[:distance], joined])
        distance *= 2
    last = torch.cat([places[1:] != places[:-1], places.new_ones(1, dtype=torch.bool)])
    # All but the last of equal places go to one more element, which is cut off.
    flat = torch.cat([total.reshape(-1), found[:1]])
    target = torch.where(last, places, total.numel())
    flat.scatter_(0, target, combine(flat[target], found))
    total.copy_(flat[:-1].view(total.shape))


def _places(total: Tensor, axis: int, index: Tensor) -> Tensor:
    """For each index, the place of the element that it means in the flat tensor."""
    steps = [torch.arange(n, device=index.device) for n in index.shape]
    coordinates = list(torch.meshgrid(*steps, indexing="ij"))
    coordinates[axis] = index
    place = torch.zeros_like(index)
    for size, coordinate in zip(total.shape, coordinates, strict=True):
        place = place * size + coordinate
    return place.reshape(-1)
