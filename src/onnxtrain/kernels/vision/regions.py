"""Regions of an image, each resampled to the same size: RoiAlign and MaxRoiPool."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, INTS


@kernel("RoiAlign", since=10, needs=["opset"], T1=FLOATS, T2=INTS)
def roi_align(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str | None = None,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    opset: int,
) -> Tensor:
    """y[r, c] = mean or maximum of samples of x inside each cell of a grid over region r.

    Without a sampling ratio, a cell as large as n pixels gets n samples along each axis. The
    maximum is that of the four weighted pixels around a sample.
    """
    default = "half_pixel" if opset >= 16 else "output_half_pixel"
    half_pixel = (coordinate_transformation_mode or default) == "half_pixel"
    corners = widen(rois) * spatial_scale - (0.5 if half_pixel else 0.0)
    size = corners[:, 2:] - corners[:, :2]
    if not half_pixel:
        size = size.clamp(min=1.0)
    rows = _Samples(corners[:, 1], size[:, 1], output_height, sampling_ratio, x.shape[2])
    columns = _Samples(corners[:, 0], size[:, 0], output_width, sampling_ratio, x.shape[3])
    used = rows.down(rows.used) & columns.across(columns.used)
    neighbours = _neighbours(widen(x), batch_indices, rows, columns)
    if mode == "avg":
        total = torch.stack(neighbours).sum(0) * used
        pooled = total.sum((2, 4)) / used.sum((2, 4)).clamp(min=1)
    else:
        largest = torch.stack(neighbours).amax(0).masked_fill(~used, -torch.inf)
        pooled = largest.amax((2, 4)).masked_fill(~used.any(4).any(2), 0.0)
    return store(pooled.permute(0, 3, 1, 2), x)


class _Samples:
    """Evenly spaced samples [region, cell, sample] along one axis.

    Attributes:
        used: Which samples there are: regions differ in how many they have in a cell.
        ends: Index and weight of the pixel before and of the one after each sample.
    """

    def __init__(self, start: Tensor, size: Tensor, cells: int, ratio: int, pixels: int) -> None:
        cell = (size / cells).reshape(-1, 1, 1)
        counts = torch.full_like(cell, ratio) if ratio > 0 else cell.ceil().clamp(min=0)
        # of no samples there is no maximum: where a cell has none there is one that is not used
        most = max(ratio if ratio > 0 else int(counts.max()) if counts.numel() else 0, 1)
        number = torch.arange(cells, device=size.device, dtype=size.dtype).reshape(1, -1, 1)
        step = torch.arange(most, device=size.device, dtype=size.dtype).reshape(1, 1, -1)
        places = start.reshape(-1, 1, 1) + cell * (number + (step + 0.5) / counts.clamp(min=1))
        self.used = (step < counts).expand_as(places)
        reached = (places >= -1) & (places <= pixels)
        places = places.clamp(0, pixels - 1).nan_to_num()
        low = places.floor()
        high = (low + 1).clamp(max=pixels - 1)
        share = places - low
        self.ends = [
            (low.to(torch.int64), (1 - share) * reached),
            (high.to(torch.int64), share * reached),
        ]

    @staticmethod
    def down(values: Tensor) -> Tensor:
        """Values of samples along the height, for all samples along the width and channels."""
        return values[:, :, :, None, None, None]

    @staticmethod
    def across(values: Tensor) -> Tensor:
        """Values of samples along the width, for all samples along the height and channels."""
        return values[:, None, None, :, :, None]


def _neighbours(
    x: Tensor, batch_indices: Tensor, rows: _Samples, columns: _Samples
) -> list[Tensor]:
    """The four pixels around each sample, weighted: [region, cell, sample, cell, sample, c]."""
    pixels = x.permute(0, 2, 3, 1)
    image = batch_indices.reshape(-1, 1, 1, 1, 1)
    return [
        pixels[image, rows.down(y).squeeze(-1), columns.across(x_).squeeze(-1)]
        * (rows.down(y_weight) * columns.across(x_weight))
        for (y, y_weight), (x_, x_weight) in itertools.product(rows.ends, columns.ends)
    ]


@kernel("MaxRoiPool", T=FLOATS)
def max_roi_pool(
    x: Tensor, rois: Tensor, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Tensor:
    """y[r, c] = maximum of x in each cell of a grid over the whole pixels of region r."""
    corners = widen(rois)[:, 1:] * spatial_scale
    corners = torch.where(corners < 0, (corners - 0.5).ceil(), (corners + 0.5).floor())
    rows = _cells(corners[:, 1], corners[:, 3], pooled_shape[0], x.shape[2])
    columns = _cells(corners[:, 0], corners[:, 2], pooled_shape[1], x.shape[3])
    images = x[rois[:, 0].to(torch.int64)]
    tall = [_largest(images, cell[:, None, :, None], 2) for cell in rows.unbind(1)]
    cells = [[_largest(row, cell[:, None, :], 2) for cell in columns.unbind(1)] for row in tall]
    pooled = torch.stack([torch.stack(row, -1) for row in cells], -2)
    return pooled.masked_fill(pooled == -torch.inf, 0.0)


def _cells(first: Tensor, last: Tensor, cells: int, pixels: int) -> Tensor:
    """Which pixels [region, cell, pixel] along an axis belong to each cell of each region."""
    length = (last - first + 1).clamp(min=1).reshape(-1, 1, 1) / cells
    number = torch.arange(cells, device=first.device).reshape(1, -1, 1)
    pixel = torch.arange(pixels, device=first.device).reshape(1, 1, -1)
    start = (number * length).floor() + first.reshape(-1, 1, 1)
    end = ((number + 1) * length).ceil() + first.reshape(-1, 1, 1)
    return (pixel >= start) & (pixel < end)


def _largest(values: Tensor, inside: Tensor, axis: int) -> Tensor:
    return values.masked_fill(~inside, -torch.inf).amax(axis)
