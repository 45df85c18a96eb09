"""Average pooling with its gradient, and what all pools share."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.layout import layout_of
from onnxtrain.kernels.nn.parts import parts
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
from onnxtrain.types import FLOATS

Shape = tuple[int | None, ...] | None


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
        options = (*torch_window(window, window.begin), bool(ceil_mode), bool(count_include_pad))
        data = _widen_volume(x)
        if len(sizes) == 3:
            return torch.ops.aten.avg_pool3d(data, *options).to(x.dtype)  # type: ignore[no-any-return]
        return _plane(torch.ops.aten.avg_pool2d(as_2d(data), *options), x)
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
        options = (*torch_window(window, window.begin), bool(ceil_mode), bool(count_include_pad))
        if dy.is_cpu and dy.ndim == 4 and dy.numel() and not blocks.recorded(dy):
            return _mean_in_parts(dy, shape, options)
        # plane by plane, whatever the layout of the gradient
        data = _widen_volume(dy).contiguous()
        like = data.new_empty(shape)
        if len(sizes) == 3:
            return torch.ops.aten.avg_pool3d_backward(data, like, *options, None).to(dy.dtype)  # type: ignore[no-any-return]
        grad = torch.ops.aten.avg_pool2d_backward(as_2d(data), as_2d(like), *options, None)
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
    plain = dy.ndim == 4 and torch_pads(window) and set(window.dilations) == {1}
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


def torch_pads(window: Window) -> bool:
    """Whether torch pools with this padding: symmetric and at most half a (dense) window."""
    return window.symmetric and all(
        2 * padding <= size for padding, size in zip(window.begin, window.kernel, strict=True)
    )


def _torch_averages(window: Window, sizes: Sequence[int]) -> bool:
    """Whether torch averages over this window; it wants a volume to be no smaller than that."""
    small = len(sizes) == 3 and any(map(operator.lt, sizes, window.kernel))
    return torch_pads(window) and all(d == 1 for d in window.dilations) and not small


def torch_window(window: Window, padding: Ints) -> tuple[Ints, Ints, Ints]:
    """Kernel, strides and padding; those of a line as those of a plane of height 1."""
    if len(padding) > 1:
        return window.kernel, window.strides, padding
    return (1, *window.kernel), (1, *window.strides), (0, *padding)


def _mean_in_parts(dy: Tensor, shape: Ints, options: Sequence[object]) -> Tensor:
    """The same for means of images."""
    grad = torch.empty(shape, dtype=dy.dtype, memory_format=layout_of(dy))
    for data, made in parts(dy, grad):
        torch.ops.aten.avg_pool2d_backward.grad_input(data, made, *options, None, grad_input=made)
    return grad


def as_2d(x: Tensor) -> Tensor:
    """A line as an image of height 1."""
    return x.unsqueeze(2) if x.ndim == 3 else x


def _plane(result: Tensor, like: Tensor) -> Tensor:
    """Undo ``as_2d`` and round to the type of ``like``."""
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
