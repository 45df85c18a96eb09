"""Convolution, its gradient, and convolution of 8-bit integers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from onnxtrain.kernels.nn.window import Ints, Window, pad, resolve
from onnxtrain.kernels.precision import Grads, multiply, multiply_back
from onnxtrain.kernels.reduction.columns import column_sums
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS, DataType

BYTES = frozenset({DataType.INT8, DataType.UINT8})
LARGE_FILTER = 64
"""Positions of a filter from which on the CPU is faster with the channels first."""
HEAVY_FILTER = 4
"""Elements of a filter for one of the image from which on reordering the filter costs too much."""
VECTOR = 16
"""Most float32 that a CPU adds at once."""


@kernel("Conv", T=FLOATS)
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """y[n, m, o] = b[m] + sum over c, k of x[n, c, o * stride + k * dilation - pad] w[m, c, k]."""
    check_filter(x, w, group, kernel_shape)
    window = resolve(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    return convolve(x, w, b, window, group)


@kernel("ConvGrad", domain=MS, outputs=3, needs=["wanted"], T=FLOATS)
def conv_grad(
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    wanted: tuple[bool, ...],
) -> Grads:
    """The gradients of Conv in x, w and b; those that nobody reads are not computed."""
    check_filter(x, w, group, kernel_shape)
    window = resolve(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    if not (dy.numel() and x.numel() and w.numel()):
        return grad_without_products(dy, x, w, mask(wanted))
    back = functools.partial(_gradients, window=window, group=group, wanted=mask(wanted))
    return multiply_back(back, dy, x, w, wide=_strays(x, window))


def _gradients(
    dy: Tensor, x: Tensor, w: Tensor, *, window: Window, group: int, wanted: list[bool]
) -> Grads:
    padded, padding = outer_padding(x, window)
    last = channels_last(padded, w, dy.shape[2:], window.strides, padding)
    grad = laid_out(dy, last)
    # torch takes several times as long to add up what lies with its channels last
    apart = bool(last) and grad.is_cuda and wanted[2]
    dx, dw, db = torch.ops.aten.convolution_backward(
        grad,
        laid_out(padded, last),
        laid_out(w, last if w.is_cuda else None),
        [w.shape[0]],
        window.strides,
        padding,
        window.dilations,
        False,
        [0] * len(padding),
        group,
        [*wanted[:2], wanted[2] and not apart],
    )
    if dx is not None and not window.symmetric:
        dx = pad(dx, less(padding, window.begin), less(padding, window.end))
    return dx, dw, column_sums(grad.movedim(1, -1)) if apart else db


@kernel("ConvInteger", since=10, T1=BYTES, T2=BYTES)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Conv of (x - x_zero_point) and (w - w_zero_point) in int32; padding is x_zero_point."""
    check_filter(x, w, group, kernel_shape)
    window = resolve(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    # float64 holds every sum of 16-bit products exactly, and both devices convolve it
    wide_x, wide_w = x.to(torch.float64), w.to(torch.float64)
    if x_zero_point is not None:
        wide_x = wide_x - x_zero_point.to(torch.float64)
    if w_zero_point is not None:
        zero = w_zero_point.to(torch.float64)
        wide_w = wide_w - zero.reshape(-1, *[1] * (w.ndim - 1))
    return convolve(wide_x, wide_w, None, window, group).to(torch.int32)


def convolve(x: Tensor, w: Tensor, b: Tensor | None, window: Window, group: int) -> Tensor:
    """Convolution with any padding."""
    sizes = window.outputs(x.shape[2:])
    if not (x.numel() and w.numel() and all(sizes)):
        return without_products(x, b, (x.shape[0], w.shape[0], *sizes))
    product = functools.partial(_convolved, window=window, group=group)
    return multiply(product, x, w, b, wide=_strays(x, window))


def _convolved(x: Tensor, w: Tensor, b: Tensor | None, *, window: Window, group: int) -> Tensor:
    sizes = window.outputs(x.shape[2:])
    x, padding = outer_padding(x, window)
    last = channels_last(x, w, sizes, window.strides, padding)
    options = (window.strides, padding, window.dilations, False, [0] * len(padding), group)
    filter_ = laid_out(w, last if w.is_cuda else None)
    result: Tensor = torch.ops.aten.convolution(laid_out(x, last), filter_, b, *options)
    return result


def without_products(x: Tensor, b: Tensor | None, shape: Ints) -> Tensor:
    """What a convolution of nothing gives: sums without terms, plus the bias."""
    y = x.new_zeros(shape)
    return y if b is None else y + b.reshape(-1, *[1] * (len(shape) - 2))


def grad_without_products(dy: Tensor, x: Tensor, w: Tensor, wanted: Sequence[bool]) -> Grads:
    """Its gradients in x, w and b."""
    return (
        torch.zeros_like(x) if wanted[0] else None,
        torch.zeros_like(w) if wanted[1] else None,
        dy.sum([0, *range(2, dy.ndim)]) if wanted[2] else None,
    )


class Image(NamedTuple):
    """What is convolved."""

    dtype: torch.dtype
    channels: int
    width: int


def channels_last(
    x: Tensor, w: Tensor, outputs: Sequence[int], strides: Ints, padding: Ints
) -> bool | None:
    """Whether images are convolved faster with their channels last; None if as they are.

    Tensor cores of a GPU take 16 bits like that. On the CPU it halves the time of most float32
    convolutions (and of pooling between them), but the gradient of a large filter may take a
    hundred times as long. What comes out is laid out like what went in, so one conversion serves
    a whole network.
    """
    if x.ndim != 4:
        return None
    if x.is_cuda:
        return True if x.dtype.itemsize == 2 else None
    image = Image(x.dtype, x.shape[1], x.shape[3])
    if math.prod(w.shape[2:]) > LARGE_FILTER or overruns(image, w, outputs, strides, padding):
        return False
    if x.dtype is not torch.float32 or not torch.backends.mkldnn.is_available():
        return None
    return w.numel() <= HEAVY_FILTER * x.numel()


def overruns(image: Image, w: Tensor, outputs: Sequence[int], strides: Ints, padding: Ints) -> bool:
    """Whether oneDNN would write past the end of its memory with the channels last.

    Its gradient of a filter that skips pixels between the single ones it sees writes whole vectors
    of channels where there are fewer. What is one pixel wide it takes for something else: padded
    ones, and those of one channel, also if they become so.
    """
    if image.dtype is not torch.float32:
        return False
    skips = math.prod(w.shape[2:]) == 1 and max(strides) > 1 and w.shape[1] < VECTOR
    thin = image.width == 1 and (padding[1] > 0 or image.channels == 1)
    return skips or thin or (image.channels == 1 and outputs[1] == 1)


class Reach(NamedTuple):
    """How a filter goes along an axis of images, of which both ends have the same padding."""

    size: int
    steps: int
    extent: int
    stride: int
    padding: int

    @property
    def strays(self) -> bool:
        """Whether oneDNN would read what nobody wrote beside images of 16 bits.

        It does where a filter or a stride is as long as an axis, which is padded or taken in
        strides, and where a filter with strides makes no step.
        """
        short = self.size <= max(self.extent, self.stride)
        return ((self.steps == 1 or short) and self.stride > 1) or (short and self.padding > 0)


def is_narrow(x: Tensor) -> bool:
    """Whether a CPU has 16-bit numbers to convolve."""
    return x.is_cpu and x.dtype.itemsize == 2


def _strays(x: Tensor, window: Window) -> bool:
    if not is_narrow(x):
        return False
    sizes = x.shape[2:]
    ends = [*zip(window.begin, window.end, strict=True)]
    whole = [size + max(pair) - min(pair) for size, pair in zip(sizes, ends, strict=True)]
    given = whole, window.outputs(sizes), window.extent, window.strides, map(min, ends)
    return any(Reach(*axis).strays for axis in zip(*given, strict=True))


def laid_out(x: Tensor, last: bool | None) -> Tensor:
    """Images with their channels last or first, or as they are."""
    if last is None:
        return x
    if last and x.shape[1] != 1:
        return x.contiguous(memory_format=torch.channels_last)
    # one channel is first and last, torch tells by strides that say nothing: they are made anew
    dense, (n, c, h, w) = x.contiguous().view(-1), x.shape
    return dense.view(n, h, w, c).movedim(-1, 1) if last else dense.view(x.shape)


def outer_padding(x: Tensor, window: Window) -> tuple[Tensor, Ints]:
    """The input padded by what one end has more than the other, and the padding both share."""
    shared = tuple(map(min, window.begin, window.end))
    return pad(x, less(window.begin, shared), less(window.end, shared)), shared


def less(a: Ints, b: Ints) -> Ints:
    """a - b."""
    return tuple(n - m for n, m in zip(a, b, strict=True))


def mask(wanted: Sequence[bool]) -> list[bool]:
    """Which of dX, dW and dB to compute."""
    return [*wanted, *[False] * (3 - len(wanted))]


def check_filter(
    x: Tensor,
    w: Tensor,
    group: int,
    kernel_shape: Sequence[int] | None,
    *,
    transposed: bool = False,
) -> None:
    """Refuse an input and a filter that do not fit each other."""
    if x.ndim != w.ndim:
        raise ValueError(f"X num_dims does not match W num_dims: {x.ndim} and {w.ndim}")
    if not 3 <= x.ndim <= 5:
        raise ValueError(f"X must have 1 to 3 spatial axes, its shape is {tuple(x.shape)}")
    if kernel_shape and tuple(kernel_shape) != tuple(w.shape[2:]):
        raise ValueError(f"kernel_shape {tuple(kernel_shape)} is not that of W {tuple(w.shape)}")
    inputs = w.shape[0] if transposed else w.shape[1] * group
    if x.shape[1] != inputs:
        raise ValueError(
            f"input channels C is not equal to kernel channels * group: {x.shape[1]} and {inputs}"
        )
    if w.shape[0] % group:
        raise ValueError(f"output channels M is not divisible by group: {w.shape[0]} by {group}")
