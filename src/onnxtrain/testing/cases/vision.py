"""Rows of the image operators."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch

from onnxtrain.testing.case import (
    Case,
    Input,
    apart,
    derived,
    given,
    normal,
    only,
    shape_input,
    uniform,
)
from onnxtrain.types import DataType

FLOAT = DataType.FLOAT
TWO = only(FLOAT, DataType.DOUBLE)


def _grid(*shape: int) -> Input:
    """Coordinates inside and around an image, away from the middle between two pixels."""
    return uniform(*shape, low=-1.3, high=1.3)


def _neighbours(place: torch.Tensor, size: int, mode: str, padding: str, corners: int) -> Any:
    """Indices and weights of the pixels along one axis that a sample is made of."""
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    place = (place + 1) / 2 * (high - low) + low
    place = place.round() if mode == "nearest" else place
    if padding == "border" and mode != "cubic":
        place = place.clamp(0, size - 1)
    reach = {"nearest": [0], "linear": [0, 1], "cubic": [-1, 0, 1, 2]}[mode]
    for step in reach:
        index = place.floor() + step
        weight = _weight((place - index).abs(), mode)
        if padding == "border":
            index = index.clamp(0, size - 1)
        elif padding == "reflection":
            index = (index - low) % (2 * (high - low))
            index = torch.where(index > high - low, 2 * (high - low) - index, index) + low
        inside = (index >= 0) & (index <= size - 1)
        yield index.clamp(0, size - 1).long(), weight * inside


def _weight(distance: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "nearest":
        return torch.ones_like(distance)
    if mode == "linear":
        return 1 - distance
    near = (1.25 * distance - 2.25) * distance**2 + 1
    far = -0.75 * (((distance - 5) * distance + 8) * distance - 4)
    return torch.where(distance <= 1, near, far)


def _sampled(
    x: torch.Tensor,
    grid: torch.Tensor,
    *,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: int = 0,
) -> torch.Tensor:
    """The sum over neighbouring pixels, axis by axis."""
    mode = mode.removeprefix("bi")
    axes = [
        list(_neighbours(grid[..., -1 - axis], size, mode, padding_mode, align_corners))
        for axis, size in enumerate(x.shape[2:])
    ]
    images = []
    for n in range(len(x)):
        total = x.new_zeros(x.shape[1], *grid.shape[1:-1])
        for picks in itertools.product(*axes):
            places = (n, slice(None), *(index[n] for index, _ in picks))
            total = total + x[places] * math.prod(weight[n] for _, weight in picks)
        images.append(total)
    return torch.stack(images)


def _affine(theta: torch.Tensor, size: torch.Tensor, *, align_corners: int = 0) -> torch.Tensor:
    """theta applied to the coordinates of each pixel."""
    axes = []
    for count in size.tolist()[2:]:
        steps = torch.arange(count, dtype=theta.dtype)
        corners, edges = 2 * steps / max(count - 1, 1) - 1, (2 * steps + 1) / count - 1
        axes.append(corners if align_corners else edges)
    points = torch.meshgrid(*axes, indexing="ij")
    homogeneous = torch.stack([*reversed(points), torch.ones_like(points[0])], -1)
    return torch.stack([homogeneous @ matrix.T for matrix in theta])


SAMPLE = [
    Case("GridSample", [normal(2, 3, 4, 5), _grid(2, 3, 2, 2)], _sampled,
         {"mode": mode, "padding_mode": padding, "align_corners": corners})
    for mode in ("linear", "nearest", "cubic")
    for padding, corners in (("zeros", 0), ("border", 1), ("border", 0), ("reflection", 0))
]  # fmt: skip
SAMPLE += [
    Case("GridSample", [normal(1, 2, 3, 4, 5), _grid(1, 2, 2, 2, 3)], _sampled, name="volume"),
    Case("GridSample", [normal(1, 2, 4, 5), _grid(1, 3, 2, 2)], _sampled, {"mode": "bicubic"},
         opset=16),
    Case("AffineGrid", [normal(2, 2, 3), shape_input(2, 3, 4, 5)], _affine),
    Case("AffineGrid", [normal(2, 3, 4), shape_input(2, 3, 2, 4, 5)], _affine,
         {"align_corners": 1}),
    # ONNX's reference has -1 for a pixel alone, torch 0 and onnxruntime 1
    Case("AffineGrid", [normal(2, 2, 3), shape_input(2, 1, 1, 3)], _affine, {"align_corners": 1},
         name="one_row"),
    Case("AffineGrid", [normal(1, 3, 4), shape_input(1, 1, 1, 2, 1)], _affine,
         {"align_corners": 1}, name="one_column"),
]  # fmt: skip


def _deformed(
    x: torch.Tensor,
    w: torch.Tensor,
    offset: torch.Tensor,
    b: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    *,
    dilations: Any = (1, 1),
    group: int = 1,
    kernel_shape: Any = None,
    offset_group: int = 1,
    pads: Any = (0, 0, 0, 0),
    strides: Any = (1, 1),
) -> torch.Tensor:
    """Tap by tap of the filter, each an image sampled at the points that its offsets moved."""
    height, width = offset.shape[2:]
    taps = list(itertools.product(*map(range, w.shape[2:])))
    moved = offset.reshape(len(x), offset_group, len(taps), 2, height, width)
    shares = (
        x.new_ones(moved[:, :, :, 0].shape) if mask is None else mask.reshape_as(moved[:, :, :, 0])
    )
    parts = []
    for index, image in enumerate(x.chunk(offset_group, 1)):
        columns = []
        for tap, steps in enumerate(taps):
            places = []
            for axis, count in enumerate((height, width)):
                base = torch.arange(count, dtype=x.dtype) * strides[axis] - pads[axis]
                base = (base + steps[axis] * dilations[axis]).reshape(
                    [-1, 1] if axis == 0 else [-1]
                )
                ends = (x.shape[2 + axis] - 1) / 2
                places.append((base + moved[:, index, tap, axis]) / ends - 1)
            grid = torch.stack(places[::-1], -1)
            found = torch.nn.functional.grid_sample(image, grid, align_corners=True)
            columns.append(found * shares[:, index, tap].unsqueeze(1))
        parts.append(torch.stack(columns, 2))
    pairs = zip(torch.cat(parts, 1).chunk(group, 1), w.flatten(2).chunk(group), strict=True)
    y = torch.cat([torch.einsum("nckhw,ock->nohw", p, weights) for p, weights in pairs], 1)
    return y if b is None else y + b.reshape(-1, 1, 1)


def _deform(x: Input, w: Input, offset: Input, *more: Input, **attributes: Any) -> Case:
    return Case("DeformConv", [x, w, offset, *more], _deformed, attributes,
                name=f"{len(more)}-more-{len(attributes)}", dtypes=TWO)  # fmt: skip


DEFORM = [
    _deform(normal(1, 2, 4, 4), normal(3, 2, 2, 2), normal(1, 8, 3, 3, scale=0.5)),
    _deform(normal(1, 2, 5, 4), normal(2, 1, 2, 3), normal(1, 24, 3, 3, scale=0.5),
            normal(2), uniform(1, 12, 3, 3), group=2, offset_group=2, pads=(0, 1, 1, 0),
            strides=(2, 1), kernel_shape=(2, 3)),
    _deform(normal(2, 1, 5, 5), normal(1, 1, 2, 2), normal(2, 8, 3, 3), dilations=(2, 2)),
]  # fmt: skip
REGIONS = [
    given(torch.tensor([[0.25, 0.5, 4.75, 4.0], [1.0, 1.5, 3.25, 5.75], [-2.0, -3.0, 8.0, 1.0]])
          ).no_grad(),
    given([0, 1, 0]),
]  # fmt: skip
MOVABLE = [given([[0.27, 0.53, 4.71, 4.06], [1.04, 1.58, 3.23, 5.71]]), given([1, 0])]
"""Regions none of whose samples lies on a pixel or where their number changes."""


def _aligned(
    x: torch.Tensor,
    rois: torch.Tensor,
    images: torch.Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> torch.Tensor:
    """Sample by sample."""
    exact = coordinate_transformation_mode == "half_pixel"
    y = x.new_zeros(len(rois), x.shape[1], output_height, output_width)
    for region, corners in enumerate(rois.double() * spatial_scale - 0.5 * exact):
        sizes = [corners[2] - corners[0], corners[3] - corners[1]]
        wide, tall = sizes if exact else [size.clamp(min=1.0) for size in sizes]
        across, down = wide / output_width, tall / output_height
        columns, rows = (sampling_ratio or math.ceil(cell.item()) for cell in (across, down))
        for row, column in itertools.product(range(output_height), range(output_width)):
            samples = [
                _bilinear(
                    x[int(images[region])],
                    corners[1] + down * (row + (i + 0.5) / rows),
                    corners[0] + across * (column + (j + 0.5) / columns),
                )
                for i, j in itertools.product(range(rows), range(columns))
            ]
            y[region, :, row, column] = torch.stack(samples).mean(0)
    return y


def _bilinear(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The value at a point, 0 if that is more than a pixel outside."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return image.new_zeros(len(image))
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    top, left = int(y.item()), int(x.item())
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = image[:, top, left] * (left + 1 - x) + image[:, top, right] * (x - left)
    lower = image[:, bottom, left] * (left + 1 - x) + image[:, bottom, right] * (x - left)
    return upper * (top + 1 - y) + lower * (y - top)


def _aligned_10(*inputs: torch.Tensor, **attributes: Any) -> torch.Tensor:
    return _aligned(*inputs, coordinate_transformation_mode="output_half_pixel", **attributes)


_SIZE = {"output_height": 2, "output_width": 4}
_IMAGES = normal(2, 3, 6, 7)
ALIGN = [
    Case("RoiAlign", [_IMAGES, *REGIONS], _aligned, {**_SIZE, "sampling_ratio": 2}),
    Case("RoiAlign", [_IMAGES, *MOVABLE], _aligned, {**_SIZE, "sampling_ratio": 3}, name="movable"),
    Case("RoiAlign", [_IMAGES, *MOVABLE], _aligned, {**_SIZE, "spatial_scale": 0.7},
         name="movable-adaptive"),
    Case("RoiAlign", [_IMAGES, *REGIONS], _aligned, _SIZE, name="adaptive"),
    Case("RoiAlign", [_IMAGES, *REGIONS], _aligned, name="shifted", attributes={
        "coordinate_transformation_mode": "output_half_pixel", "spatial_scale": 0.5, **_SIZE}),
    Case("RoiAlign", [_IMAGES, *REGIONS], _aligned_10, _SIZE, opset=10),
    Case("RoiAlign", [_IMAGES, *MOVABLE], dtypes=TWO, name="largest",
         attributes={**_SIZE, "mode": "max", "sampling_ratio": 2}),
]  # fmt: skip


def _roi_pool(
    x: torch.Tensor, rois: torch.Tensor, *, pooled_shape: Any, spatial_scale: float = 1.0
) -> torch.Tensor:
    """Cell by cell."""
    height, width = pooled_shape
    y = x.new_zeros(len(rois), x.shape[1], height, width)
    for index, (image, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = (int(np.floor(c * spatial_scale + 0.5)) for c in corners)
        tall = max(bottom - top + 1, 1) / height
        wide = max(right - left + 1, 1) / width
        for row in range(height):
            for column in range(width):
                rows = range(
                    max(top + int(np.floor(row * tall)), 0),
                    min(top + int(np.ceil((row + 1) * tall)), x.shape[2]),
                )
                columns = range(
                    max(left + int(np.floor(column * wide)), 0),
                    min(left + int(np.ceil((column + 1) * wide)), x.shape[3]),
                )
                if rows and columns:
                    cell = x[int(image), :, rows.start : rows.stop, columns.start : columns.stop]
                    y[index, :, row, column] = cell.amax((1, 2))
    return y


POOL = [
    Case("MaxRoiPool", [apart(2, 2, 6, 6), given([[0.0, 1, 1, 4, 5], [1.0, 0, 2, 9, 3]]).no_grad()],
         _roi_pool, {"pooled_shape": (2, 3)}),
    Case("MaxRoiPool", [apart(1, 1, 4, 4), given([[0.0, 6, 6, 7, 7], [0.0, 3, 3, 5, 5]]).no_grad()],
         _roi_pool, {"pooled_shape": (2, 2), "spatial_scale": 0.5}),
    Case("MaxUnpool", [normal(1, 1, 2, 2), given([[[[5, 7], [13, 15]]]])],
         attributes={"kernel_shape": (2, 2), "strides": (2, 2)}),
    Case("MaxUnpool", [normal(1, 1, 2, 2), given([[[[5, 7], [13, 15]]]]), shape_input(1, 1, 5, 6)],
         attributes={"kernel_shape": (2, 2), "strides": (2, 2)}, name="larger"),
]  # fmt: skip


def _boxes(count: int) -> Input:
    """Boxes of about half the picture, of which many overlap."""

    def make(generator: torch.Generator) -> torch.Tensor:
        corner = torch.rand(2, count, 2, generator=generator, dtype=torch.float64)
        return torch.cat([corner, corner + 0.5], -1)

    return derived(make).typed(FLOAT).no_grad()


def _suppress(scores: Input, *limits: Input | None, **attributes: int) -> Case:
    return Case("NonMaxSuppression", [_boxes(8), scores, *limits], attributes=attributes,
                name=f"{len(limits)}-limits-{len(attributes)}", gradient=False)  # fmt: skip


_SCORES = apart(2, 3, 8).typed(FLOAT).no_grad()
SUPPRESS = [
    _suppress(_SCORES, given([3], constant=True), given([0.3], FLOAT, constant=True),
              given([0.1], FLOAT, constant=True)),
    _suppress(_SCORES, given([8], constant=True), given([0.5], FLOAT, constant=True),
              given([-9.0], FLOAT, constant=True), center_point_box=1),
]  # fmt: skip


def _picture() -> bytes:
    """A picture of 2 by 3 pixels in the plainest of formats."""
    return b"P6 3 2 255\n" + bytes(range(18))


def _decoded(stream: torch.Tensor, *, pixel_format: str = "RGB") -> torch.Tensor:
    pixels = stream[-18:].reshape(2, 3, 3)
    return pixels.flip(-1) if pixel_format == "BGR" else pixels


DECODE = [
    Case("ImageDecoder", [given(torch.tensor(list(_picture())), DataType.UINT8)], _decoded,
         attributes, gradient=False)
    for attributes in ({}, {"pixel_format": "BGR"})
]  # fmt: skip

CASES: list[Case] = [*SAMPLE, *DEFORM, *ALIGN, *POOL, *SUPPRESS, *DECODE]
