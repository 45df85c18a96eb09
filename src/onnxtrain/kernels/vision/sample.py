"""Values of an image between its pixels: GridSample, AffineGrid, DeformConv, and MaxUnpool."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.nn.places import NOWHERE
from onnxtrain.kernels.precision import acc, store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.vision.sample_grad import grid_sample_by_pixels
from onnxtrain.types import FLOATS, INTS, NUMBERS

_MODES = {"linear": "bilinear", "cubic": "bicubic"}
"""Names since opset 20, and those before."""


@kernel("GridSample", since=16, T1=NUMBERS, T2=FLOATS)
def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:
    """y[n, c, ...] = x[n, c] at the coordinates grid[n, ...], which go from -1 to 1."""
    if not x.is_floating_point():
        values = x.to(torch.float64)
        options = {"align_corners": align_corners, "mode": mode, "padding_mode": padding_mode}
        return grid_sample(values, grid, **options).to(torch.int64).to(x.dtype)  # type: ignore[arg-type]
    dtype = acc(torch.promote_types(x.dtype, grid.dtype))
    places, method = grid.to(dtype), _MODES.get(mode, mode)
    if x.ndim not in ((4,) if method == "bicubic" else (4, 5)):
        return grid_sample_by_pixels(
            x, grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode
        )
    sampled = functional.grid_sample(
        x.to(dtype),
        places,
        mode=method,
        padding_mode=padding_mode,
        align_corners=bool(align_corners),
    )
    return sampled.to(x.dtype)


@kernel("AffineGrid", since=20, host=["size"], T1=FLOATS)
def affine_grid(theta: Tensor, size: list[int], *, align_corners: int = 0) -> Tensor:
    """grid[n, ...] = theta[n] · (coordinates of the output, 1)."""
    batch, _, *sizes = size
    rank = len(sizes)
    if rank not in (2, 3) or tuple(theta.shape) != (batch, rank, rank + 1):
        raise ValueError(f"theta has shape {list(theta.shape)}, which does not fit to size {size}")
    wide = widen(theta)
    axes = [_coordinates(count, bool(align_corners), wide) for count in sizes]
    places = [*reversed(torch.meshgrid(*axes, indexing="ij"))]
    points = torch.stack([*places, torch.ones_like(places[0])], -1).reshape(-1, rank + 1)
    return store((points @ wide.transpose(1, 2)).reshape(batch, *sizes, rank), theta)


def _coordinates(count: int, corners: bool, like: Tensor) -> Tensor:
    """Of each pixel from -1 to 1, which are centers or outer edges of the first and the last one.

    A pixel alone has its center at -1, as in ONNX's reference (torch puts it at 0).
    """
    if corners:
        return torch.linspace(-1, 1, count, dtype=like.dtype, device=like.device)
    steps = torch.arange(count, dtype=like.dtype, device=like.device)
    return (2 * steps + 1) / count - 1


@kernel("DeformConv", since=19, T=FLOATS)
def deform_conv(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Conv whose points are moved by offsets and weighted by a mask; outside of x there is 0."""
    rank, out = x.ndim - 2, offset.shape[2:]
    taps = list(kernel_shape or w.shape[2:])
    points = math.prod(taps)
    wide = widen(x).reshape(len(x) * offset_group, -1, *x.shape[2:])
    moved = widen(offset).reshape(len(x) * offset_group, points, rank, -1)
    starts = (pads or [0] * rank)[:rank]
    base = _tap_positions(taps, out, strides, dilations, starts, wide)
    coordinates = [(moved[:, :, axis] + base[axis]).flatten(1) for axis in range(rank)]
    values = _interpolated(wide, coordinates)
    if mask is not None:
        values = values * widen(mask).reshape(len(x) * offset_group, 1, -1)
    columns = values.reshape(len(x), group, -1, math.prod(out))
    filters = widen(w).reshape(group, len(w) // group, -1)
    y = torch.matmul(filters, columns).reshape(len(x), len(w), *out)
    if b is not None:
        y = y + widen(b).reshape(-1, *[1] * rank)
    return store(y, x)


def _tap_positions(
    taps: Sequence[int],
    out: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    starts: Sequence[int],
    like: Tensor,
) -> list[Tensor]:
    """For each axis, where tap k of a filter lies for output o, as [k, o], all taps in one axis."""
    found = []
    for axis, (taps_here, outputs) in enumerate(zip(taps, out, strict=True)):
        step = strides[axis] if strides else 1
        spread = dilations[axis] if dilations else 1
        tap = torch.arange(taps_here, device=like.device, dtype=like.dtype) * spread
        place = torch.arange(outputs, device=like.device, dtype=like.dtype) * step - starts[axis]
        tap = tap.reshape([-1 if i == axis else 1 for i in range(len(taps))]).expand(*taps)
        place = place.reshape([-1 if i == axis else 1 for i in range(len(out))]).expand(*out)
        found.append(tap.reshape(-1, 1) + place.reshape(1, -1))
    return found


def _interpolated(x: Tensor, coordinates: Sequence[Tensor]) -> Tensor:
    """Linear interpolation of x[n, c, ...] at points [n, p] for each axis; 0 outside."""
    flat = x.flatten(2)
    total = x.new_zeros(*x.shape[:2], coordinates[0].shape[1])
    for corner in itertools.product((0, 1), repeat=len(coordinates)):
        weight = torch.ones_like(coordinates[0])
        index = torch.zeros_like(coordinates[0], dtype=torch.int64)
        for size, upper, place in zip(x.shape[2:], corner, coordinates, strict=True):
            low = place.floor()
            at = low + upper
            inside = (at >= 0) & (at < size)
            part = place - low if upper else 1 - (place - low)
            weight = weight * part * inside
            index = index * size + at.clamp(0, size - 1).to(torch.int64)
        picked = flat.gather(2, index.unsqueeze(1).expand(-1, x.shape[1], -1))
        total = total + picked * weight.unsqueeze(1)
    return total


@kernel("MaxUnpool", since=9, host=["output_shape"], T1=FLOATS, T2=INTS)
def max_unpool(
    x: Tensor,
    i: Tensor,
    output_shape: list[int] | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Zeros with x at the flat places i of what was pooled, in the first corner of the output.

    What was found nowhere is put nowhere.
    """
    if i.shape != x.shape:
        raise ValueError(f"X {tuple(x.shape)} and I {tuple(i.shape)} differ in shape")
    rank = x.ndim - 2
    steps, padding = strides or [1] * rank, pads or [0] * 2 * rank
    pooled = [
        (x.shape[axis + 2] - 1) * steps[axis]
        - (padding[axis] + padding[axis + rank])
        + kernel_shape[axis]
        for axis in range(rank)
    ]
    shape = [*x.shape[:2], *pooled]
    count = math.prod(shape)
    places = torch.where(i == NOWHERE, count, i).reshape(-1)
    y = x.new_zeros(count + 1).scatter(0, places, x.reshape(-1))[:count].reshape(shape)
    if output_shape is None or output_shape == shape:
        return y
    ends = [
        n
        for have, want in zip(reversed(shape), reversed(output_shape), strict=True)
        for n in (0, want - have)
    ]
    return functional.pad(y, ends)
