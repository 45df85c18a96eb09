"""Maximum pooling with its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.layout import layout_of
from onnxtrain.kernels.nn.parts import Rooms, parts
from onnxtrain.kernels.nn.places import (
    NOWHERE,
    flattened,
    inside,
    plane_starts,
    unpadded,
    unravel,
)
from onnxtrain.kernels.nn.pool import (
    Shape,
    as_2d,
    nothing_pooled,
    spatial,
    torch_pads,
    torch_window,
    unpooled_shape,
)
from onnxtrain.kernels.nn.window import Ints, Window, covered, pad, resolve
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.indices import add_at
from onnxtrain.types import FLOATS, DataType

FEW = 1 << 15
"""Elements of a gradient that a CPU adds one by one in less time than torch's calls would take."""
VECTOR = 32
"""Bytes of a pixel's channels from which on a CPU pools several at once, if they lie together."""


@kernel("MaxPool", outputs=2, needs=["wanted"], T=FLOATS | {DataType.INT8, DataType.UINT8})
def max_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, Tensor | None]:
    """y = maximum of each window, and where in the whole of x it was found.

    A window of nothing but padding has the lowest number of the type, and is found nowhere.
    """
    sizes = spatial(x)
    window = resolve(sizes, kernel_shape, strides, dilations, pads, auto_pad)
    ceil_mode = 0 if auto_pad.startswith("SAME") else ceil_mode
    if (empty := nothing_pooled(x, window, ceil_mode)) is not None:
        return empty, empty.to(torch.int64)
    outputs = window.outputs(sizes, ceil_mode)
    hollow = window.hollow(sizes, outputs)
    begin: Ints = (0,) * len(sizes)
    # torch pools no 8-bit integers; float32 holds them exactly
    data = x if x.is_floating_point() else x.to(torch.float32)
    if torch_pads(window) and not hollow:
        padding = window.begin
    else:
        data, padding = pad(data, window.begin, window.tail(sizes, outputs), -math.inf), begin
        begin, ceil_mode = window.begin, 0
    y, indices = pooled(data, window, padding, bool(ceil_mode))
    none = covered(window, sizes, outputs, False, data) == 0 if hollow else None
    y = y.to(x.dtype) if none is None else _filled(y, none, x.dtype)
    if len(wanted) < 2 or not wanted[1]:
        return y, None
    if any(begin) or storage_order or tuple(data.shape[2:]) != sizes:
        coordinates = unpadded(unravel(indices, data.shape[2:]), begin, sizes)
        indices = flattened(coordinates, sizes, storage_order)
    indices = indices + plane_starts(indices, sizes)
    return y, indices if none is None else indices.masked_fill(none, NOWHERE)


@kernel("MaxPoolGrad", since=9, host=["shape"], needs=["out_shape", "deterministic"], T=FLOATS)
def max_pool_grad(
    dy: Tensor,
    indices: Tensor,
    shape: Sequence[int] | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    out_shape: Shape,
    deterministic: bool = False,
) -> Tensor:
    """dx.flat[indices] += dy; windows that overlap add up, those found nowhere add nothing."""
    if dy.shape != indices.shape:
        raise ValueError(f"dY {tuple(dy.shape)} and Indices {tuple(indices.shape)} differ in shape")
    shape = tuple(shape) if shape is not None else unpooled_shape(dy, out_shape)
    if storage_order:
        sizes = shape[2:]
        starts = plane_starts(indices, sizes)
        columns = reversed(unravel(indices - starts, sizes[::-1]))
        found = flattened(list(columns), sizes, 0) + starts
        indices = torch.where(indices < 0, indices, found)
    elif kernel_shape and dy.ndim == 4 and not blocks.recorded(dy):
        window = resolve(shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
        ceil_mode = 0 if auto_pad.startswith("SAME") else ceil_mode
        fitting = _by_triton if dy.is_cuda else _max_in_parts
        if (grad := fitting(dy, indices, shape, window, ceil_mode)) is not None:
            return grad
    grad = widen(dy).new_zeros(math.prod(shape))
    values, indices = widen(dy).reshape(-1), indices.reshape(-1)
    try:
        if not indices.is_cuda:
            add_at(grad, 0, indices, values, ordered=deterministic)
            return grad.reshape(shape).to(dy.dtype)
    except RuntimeError:  # some are found nowhere, or are wrong
        grad.zero_()
    values = values.masked_fill(indices == NOWHERE, 0)
    add_at(grad, 0, inside(indices, grad.numel()), values, ordered=deterministic)
    return grad.reshape(shape).to(dy.dtype)


def pooled(x: Tensor, window: Window, padding: Ints, ceil_mode: bool) -> tuple[Tensor, Tensor]:
    """Maxima and their flat places within each channel, laid out like x."""
    kernel_, strides, padding = torch_window(window, padding)
    dilations = window.dilations if len(window.dilations) > 1 else (1, *window.dilations)
    options = (kernel_, strides, padding, dilations, ceil_mode)
    if x.ndim == 5:
        return torch.ops.aten.max_pool3d_with_indices(x, *options)  # type: ignore[no-any-return]
    x2d = as_2d(x)
    if x.is_cuda and x.dtype is torch.float64:
        # with channels last torch has these behind as many 32-bit numbers, which may be odd; it
        # goes by the strides, and those of a single channel may be the last ones of a dense tensor
        x2d = x2d.reshape(-1).view(x2d.shape)
    turned = not x.is_cuda and x.is_contiguous() and x.shape[1] * x.element_size() >= VECTOR
    if turned:
        x2d = x2d.contiguous(memory_format=torch.channels_last)
    y, indices = torch.ops.aten.max_pool2d_with_indices(x2d, *options)
    if turned:
        y, indices = y.contiguous(), indices.contiguous()
    return (y.squeeze(2), indices.squeeze(2)) if x.ndim == 3 else (y, indices)


def _filled(y: Tensor, none: Tensor, dtype: torch.dtype) -> Tensor:
    """Maxima in their type, the lowest number where there are none."""
    kind = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return y.masked_fill(none, 0).to(dtype).masked_fill(none, kind.min)


def _max_in_parts(
    dy: Tensor, indices: Tensor, shape: Ints, window: Window, ceil_mode: int
) -> Tensor | None:
    """dx as torch computes it on the CPU, laid out like dy; None if these are no places of a pool.

    Torch does not look whether places lie in the plane that they are for. A few are left to others.
    """
    sizes = shape[2:]
    expected = window.outputs(sizes, ceil_mode) == tuple(dy.shape[2:]) and torch_pads(window)
    few = dy.is_contiguous() and dy.numel() <= FEW
    if few or not expected:
        return None
    layout = layout_of(dy)
    grad, rooms = torch.empty(shape, dtype=dy.dtype, memory_format=layout), Rooms(layout)
    for data, made, whole, start in parts(dy, grad, indices, plane_starts(indices, sizes)):
        places = torch.sub(whole, start, out=rooms.like(whole, whole.dtype))
        if not are_inside(places, sizes):
            return None
        add_to_places(data, made, places, window, bool(ceil_mode))
    return grad


def are_inside(places: Tensor, sizes: Ints) -> bool:
    """Whether all places are in their plane."""
    # torch searches several times as fast in the order of the memory
    last = layout_of(places) is torch.channels_last
    ends = (places.permute(0, 2, 3, 1) if last else places).aminmax()
    return all(0 <= int(end) < math.prod(sizes) for end in ends)


def add_to_places(
    dy: Tensor, grad: Tensor, places: Tensor, window: Window, ceil_mode: bool
) -> None:
    """Fill the gradient of images with what is added up at places, which torch does not check."""
    options = (window.kernel, window.strides, window.begin, window.dilations, ceil_mode)
    # of what was pooled, torch asks for no more than the shape: the result has it too
    torch.ops.aten.max_pool2d_with_indices_backward.grad_input(
        dy, grad, *options, places, grad_input=grad
    )


def _by_triton(
    dy: Tensor, indices: Tensor, shape: Ints, window: Window, ceil_mode: int
) -> Tensor | None:
    """dx laid out like dy, each element added up by one program; None if Triton does not take it.

    A place that no window has where it should be adds nothing, as the host does not see it.
    """
    dense = dy if dy.is_contiguous() else dy.movedim(1, -1)
    expected = window.outputs(shape[2:], ceil_mode) == tuple(dy.shape[2:]) and torch_pads(window)
    if not expected or not fast.ready(dense, smallest=1):
        return None
    quick = fast.load("pool")
    grad: Tensor = quick.max_pool_grad(
        dy, indices, shape, window.extent, window.strides, window.begin
    )
    return grad
