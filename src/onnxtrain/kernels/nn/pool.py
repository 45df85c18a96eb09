"""Maximum and average pooling, with their gradients."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from types import ModuleType

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
from onnxtrain.kernels.nn.window import (
    Ints,
    Window,
    covered,
    pad,
    resolve,
    sliding,
    window_axes,
)
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.indices import add_at
from onnxtrain.types import FLOATS, DataType

Shape = tuple[int | None, ...] | None
FEW = 1 << 15
"""Elements of a gradient that a CPU adds one by one in less time than torch's calls would take."""


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
    if _torch_pads(window) and not hollow:
        padding = window.begin
    else:
        data, padding = pad(data, window.begin, window.tail(sizes, outputs), -math.inf), begin
        begin, ceil_mode = window.begin, 0
    y, indices = _max_pool(data, window, padding, bool(ceil_mode))
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


@kernel("AveragePool", T=FLOATS)
def average_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """y = mean of each window; padding counts as zeros or not at all, the mean of nothing is 0."""
    sizes = spatial(x)
    window = resolve(sizes, kernel_shape, strides, dilations, pads, auto_pad)
    ceil_mode = 0 if auto_pad.startswith("SAME") else ceil_mode
    if (empty := nothing_pooled(x, window, ceil_mode)) is not None:
        return empty
    if _torch_averages(window, sizes):
        options = (*_torch_window(window, window.begin), bool(ceil_mode), bool(count_include_pad))
        data = _widen_volume(x)
        if len(sizes) == 3:
            return torch.ops.aten.avg_pool3d(data, *options).to(x.dtype)  # type: ignore[no-any-return]
        return _plane(torch.ops.aten.avg_pool2d(_as_2d(data), *options), x)
    outputs = window.outputs(sizes, ceil_mode)
    data = widen(x)
    total = sliding(data, window, window.tail(sizes, outputs)).sum(window_axes(window))
    count = covered(window, sizes, outputs, bool(count_include_pad), data)
    return (total / count.clamp(min=1)).to(x.dtype)


@kernel("AveragePoolGrad", since=9, host=["shape"], needs=["out_shape", "deterministic"], T=FLOATS)
def average_pool_grad(
    dy: Tensor,
    shape: Sequence[int] | None = None,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    out_shape: Shape,
    deterministic: bool = False,
) -> Tensor:
    """dx[window] += dy / (how many elements the window counts)."""
    shape = tuple(shape) if shape is not None else unpooled_shape(dy, out_shape)
    sizes = shape[2:]
    window = resolve(sizes, kernel_shape, strides, dilations, pads, auto_pad)
    ceil_mode = 0 if auto_pad.startswith("SAME") else ceil_mode
    outputs = window.outputs(sizes, ceil_mode)
    if tuple(dy.shape[2:]) != outputs:
        raise ValueError(f"dY has sizes {tuple(dy.shape[2:])}, pooling {sizes} gives {outputs}")
    if not dy.numel():
        return dy.new_zeros(shape)
    if quick := _fast_mean(dy, window):
        found: Tensor = quick.average_pool_grad(
            dy, shape, window.kernel, window.strides, window.begin, bool(count_include_pad)
        )
        return found
    # torch adds the gradients of a volume in any order on CUDA
    unordered = deterministic and len(sizes) == 3
    if _torch_averages(window, sizes) and not unordered:
        options = (*_torch_window(window, window.begin), bool(ceil_mode), bool(count_include_pad))
        if dy.is_cpu and dy.ndim == 4 and dy.numel() and not blocks.recorded(dy):
            return _mean_in_parts(dy, shape, options)
        # plane by plane, whatever the layout of the gradient
        data = _widen_volume(dy).contiguous()
        like = data.new_empty(shape)
        if len(sizes) == 3:
            return torch.ops.aten.avg_pool3d_backward(data, like, *options, None).to(dy.dtype)  # type: ignore[no-any-return]
        grad = torch.ops.aten.avg_pool2d_backward(_as_2d(data), _as_2d(like), *options, None)
        return _plane(grad, dy)
    data = widen(dy)
    count = covered(window, sizes, outputs, bool(count_include_pad), data)
    spread = _spread(data / count.clamp(min=1), window)
    crop = [-n for n in window.begin], [-n for n in window.tail(sizes, outputs)]
    return pad(spread, *crop).to(dy.dtype)


def _fast_mean(dy: Tensor, window: Window) -> ModuleType | None:
    """The Triton kernels for images, if they take these."""
    if not dy.is_cuda:
        return None
    dense = dy if dy.is_contiguous() else dy.movedim(1, -1)
    plain = dy.ndim == 4 and _torch_pads(window) and set(window.dilations) == {1}
    if not plain or not fast.ready(dense, smallest=1):
        return None
    quick = fast.load("pool")
    return quick if quick.takes_mean(window.kernel, window.strides) else None


def spatial(x: Tensor) -> Ints:
    """Sizes of the axes that are pooled."""
    if not 3 <= x.ndim <= 5:
        raise ValueError(f"a pool needs 1 to 3 spatial axes, its input has shape {tuple(x.shape)}")
    return tuple(x.shape[2:])


def nothing_pooled(x: Tensor, window: Window, ceil_mode: int) -> Tensor | None:
    """The result if it has no elements.

    Raises:
        ValueError: if it has some, which would be made of none.
    """
    shape = (*x.shape[:2], *window.outputs(x.shape[2:], ceil_mode))
    if 0 in shape:
        return x.new_empty(shape)
    if not x.numel():
        raise ValueError(f"there is nothing to pool in a tensor of shape {tuple(x.shape)}")
    return None


def unpooled_shape(dy: Tensor, out_shape: Shape) -> Ints:
    """Shape of what was pooled: batch and channels of dY, sizes as the graph declares them."""
    sizes = None if out_shape is None else [n for n in out_shape[2:] if n is not None]
    if sizes is None or len(sizes) != dy.ndim - 2:
        raise ValueError(
            f"the sizes of dX must be declared in the graph, its shape is {out_shape}; "
            "give the pool's input a static shape"
        )
    return (*dy.shape[:2], *sizes)


def _torch_pads(window: Window) -> bool:
    """Whether torch pools with this padding: symmetric and at most half a (dense) window."""
    return window.symmetric and all(
        2 * padding <= size for padding, size in zip(window.begin, window.kernel, strict=True)
    )


def _torch_averages(window: Window, sizes: Sequence[int]) -> bool:
    """Whether torch averages over this window; it wants a volume to be no smaller than that."""
    small = len(sizes) == 3 and any(map(operator.lt, sizes, window.kernel))
    return _torch_pads(window) and all(d == 1 for d in window.dilations) and not small


def _torch_window(window: Window, padding: Ints) -> tuple[Ints, Ints, Ints]:
    """Kernel, strides and padding; those of a line as those of a plane of height 1."""
    if len(padding) > 1:
        return window.kernel, window.strides, padding
    return (1, *window.kernel), (1, *window.strides), (0, *padding)


def _max_pool(x: Tensor, window: Window, padding: Ints, ceil_mode: bool) -> tuple[Tensor, Tensor]:
    """Maxima and their flat places within each channel."""
    kernel_, strides, padding = _torch_window(window, padding)
    dilations = window.dilations if len(window.dilations) > 1 else (1, *window.dilations)
    options = (kernel_, strides, padding, dilations, ceil_mode)
    if x.ndim == 5:
        return torch.ops.aten.max_pool3d_with_indices(x, *options)  # type: ignore[no-any-return]
    x2d = _as_2d(x)
    if x.is_cuda and x.dtype is torch.float64:
        # with channels last torch has these behind as many 32-bit numbers, which may be odd; it
        # goes by the strides, and those of a single channel may be the last ones of a dense tensor
        x2d = x2d.reshape(-1).view(x2d.shape)
    y, indices = torch.ops.aten.max_pool2d_with_indices(x2d, *options)
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
    expected = window.outputs(sizes, ceil_mode) == tuple(dy.shape[2:]) and _torch_pads(window)
    few = dy.is_contiguous() and dy.numel() <= FEW
    if few or not expected:
        return None
    layout, planes = layout_of(dy), plane_starts(indices, sizes)
    grad = torch.empty(shape, dtype=dy.dtype, memory_format=layout)
    rooms = Rooms(layout)
    options = (window.kernel, window.strides, window.begin, window.dilations, bool(ceil_mode))
    for data, made, whole, start in parts(dy, grad, indices, planes):
        places = torch.sub(whole, start, out=rooms.like(whole, whole.dtype))
        # torch searches several times as fast in the order of the memory
        ordered = places.permute(0, 2, 3, 1) if layout is torch.channels_last else places
        if any(not 0 <= int(end) < math.prod(sizes) for end in ordered.aminmax()):
            return None
        # of what was pooled, torch asks for no more than the shape: the result has it too
        torch.ops.aten.max_pool2d_with_indices_backward.grad_input(
            data, made, *options, places, grad_input=made
        )
    return grad


def _mean_in_parts(dy: Tensor, shape: Ints, options: Sequence[object]) -> Tensor:
    """The same for means of images."""
    grad = torch.empty(shape, dtype=dy.dtype, memory_format=layout_of(dy))
    for data, made in parts(dy, grad):
        torch.ops.aten.avg_pool2d_backward.grad_input(data, made, *options, None, grad_input=made)
    return grad


def _by_triton(
    dy: Tensor, indices: Tensor, shape: Ints, window: Window, ceil_mode: int
) -> Tensor | None:
    """dx laid out like dy, each element added up by one program; None if Triton does not take it.

    A place that no window has where it should be adds nothing, as the host does not see it.
    """
    dense = dy if dy.is_contiguous() else dy.movedim(1, -1)
    expected = window.outputs(shape[2:], ceil_mode) == tuple(dy.shape[2:]) and _torch_pads(window)
    if not expected or not fast.ready(dense, smallest=1):
        return None
    quick = fast.load("pool")
    grad: Tensor = quick.max_pool_grad(
        dy, indices, shape, window.extent, window.strides, window.begin
    )
    return grad


def _as_2d(x: Tensor) -> Tensor:
    return x.unsqueeze(2) if x.ndim == 3 else x


def _plane(result: Tensor, like: Tensor) -> Tensor:
    """Undo ``_as_2d`` and round to the type of ``like``."""
    return (result.squeeze(2) if like.ndim == 3 else result).to(like.dtype)


def _widen_volume(x: Tensor) -> Tensor:
    """torch averages volumes of 16-bit floats on CUDA only."""
    return widen(x) if x.ndim == 5 and not x.is_cuda else x


def _spread(each: Tensor, window: Window) -> Tensor:
    """Add every value to all elements of its window."""
    ones = each.new_ones((1, 1, *window.kernel))
    single = each.reshape(-1, 1, *each.shape[2:])
    rank = len(window.kernel)
    spread: Tensor = torch.ops.aten.convolution(
        single, ones, None, window.strides, [0] * rank, window.dilations, True, [0] * rank, 1
    )
    return spread.reshape(*each.shape[:2], *spread.shape[2:])
