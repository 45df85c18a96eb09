"""Transposed convolution and its gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.layout import layout_of
from onnxtrain.kernels.nn.conv import (
    Image,
    Reach,
    check_filter,
    grad_without_products,
    is_narrow,
    laid_out,
    mask,
    overruns,
    without_products,
)
from onnxtrain.kernels.nn.window import (
    Ints,
    check_auto_pad,
    explicit,
    halves,
    pad,
    positive,
    steps_between,
)
from onnxtrain.kernels.precision import Grads, multiply, multiply_back
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS

_aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How the output that torch makes differs from the one that is asked for.

    Attributes:
        strides: Distance of the input's elements in the output.
        dilations: Distance of the kernel's elements.
        padding: What torch cuts off at both ends.
        extra: What torch adds at the end after that (``output_padding``).
        begin: What must be added to torch's output at the begin; negative: cut off.
        end: The same at the end.
    """

    strides: Ints
    dilations: Ints
    padding: Ints
    extra: Ints
    begin: Ints
    end: Ints

    def made(self, sizes: Sequence[int], kernel_shape: Sequence[int]) -> Ints:
        """Sizes of what torch makes."""
        return tuple(
            (size - 1) * stride + (k - 1) * dilation + 1 + extra - 2 * padding
            for size, k, stride, dilation, padding, extra in zip(
                *(sizes, kernel_shape, self.strides, self.dilations, self.padding, self.extra),
                strict=True,
            )
        )

    def outputs(self, sizes: Sequence[int], kernel_shape: Sequence[int]) -> Ints:
        """Sizes of the result."""
        made = self.made(sizes, kernel_shape)
        found = tuple(sum(parts) for parts in zip(made, self.begin, self.end, strict=True))
        if min(found, default=0) < 0:
            raise ValueError(
                f"the padding cuts off more than there is: {tuple(sizes)} would become {found}"
            )
        return found

    def strays(self, x: Tensor, w: Tensor) -> bool:
        """Whether oneDNN reads beside what torch makes, of which a convolution would make x."""
        if not is_narrow(x):
            return False
        sizes, kernel_shape = x.shape[2:], w.shape[2:]
        extents = [(k - 1) * n + 1 for k, n in zip(kernel_shape, self.dilations, strict=True)]
        given = self.made(sizes, kernel_shape), sizes, extents, self.strides, self.padding
        return any(Reach(*axis).strays for axis in zip(*given, strict=True))

    def safely_laid_out(self, x: Tensor, w: Tensor, group: int, *xs: Tensor) -> list[Tensor]:
        """Images with their channels first where oneDNN would overrun its memory otherwise."""
        if not x.is_cpu or x.ndim != 4:
            return [*xs]
        image = Image(x.dtype, w.shape[1] * group, self.made(x.shape[2:], w.shape[2:])[1])
        first = overruns(image, w, x.shape[2:], self.strides, self.padding)
        return [laid_out(x, False) if first else x for x in xs]


@kernel("ConvTranspose", T=FLOATS)
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """y[n, m, i * stride + k * dilation - begin] += x[n, c, i] * w[c, m, k]; then + b[m]."""
    check_filter(x, w, group, kernel_shape, transposed=True)
    made = geometry(x, w, auto_pad, dilations, output_padding, output_shape, pads, strides)
    sizes = made.outputs(x.shape[2:], w.shape[2:])
    if not (x.numel() and w.numel() and all(sizes)):
        return without_products(x, b, (x.shape[0], w.shape[1] * group, *sizes))
    grows = max(made.end) > 0
    options = (made.strides, made.padding, made.dilations, True, made.extra, group)

    def product(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        result: Tensor = _aten.convolution(*made.safely_laid_out(x, w, group, x, w), b, *options)
        return result

    y = multiply(product, x, w, None if grows else b, wide=made.strays(x, w))
    y = pad(y, made.begin, made.end)
    return y + b.reshape(-1, *[1] * (y.ndim - 2)) if grows and b is not None else y


@kernel("ConvTransposeGrad", domain=MS, outputs=3, needs=["wanted"], T=FLOATS)
def conv_transpose_grad(
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    wanted: tuple[bool, ...],
) -> Grads:
    """dx = conv(dy, w); dw correlates dy with x; db sums dy. dy's own sizes are the output's."""
    check_filter(x, w, group, kernel_shape, transposed=True)
    made = geometry(
        x, w, auto_pad, dilations, output_padding, output_shape, pads, strides, dy.shape[2:]
    )
    need_x, need_w, need_b = mask(wanted)
    if not (dy.numel() and x.numel() and w.numel()):
        return grad_without_products(dy, x, w, mask(wanted))
    db = dy.sum([0, *range(2, dy.ndim)]) if need_b else None
    if not need_x and not need_w:
        return None, None, db
    fitted = pad(dy, [-n for n in made.begin], [-n for n in made.end])
    w = w.contiguous(memory_format=layout_of(w))  # a CPU refuses some lines of other layouts
    options = (None, made.strides, made.padding, made.dilations, True, made.extra, group)
    asked = [need_x, need_w, False]

    def gradients(dy: Tensor, x: Tensor, w: Tensor) -> Grads:
        images = made.safely_laid_out(x, w, group, dy, x, w)
        result: Grads = _aten.convolution_backward(*images, *options, asked)
        return result

    dx, dw, _ = multiply_back(gradients, fitted, x, w, wide=made.strays(x, w))
    return dx, dw, db


def geometry(
    x: Tensor,
    w: Tensor,
    auto_pad: str,
    dilations: Sequence[int] | None,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    actual: Sequence[int] | None = None,
) -> Geometry:
    """Resolve the attributes; ``actual`` are the output's sizes if they are known already.

    ``auto_pad`` only cuts off: a stride beyond the kernel leaves the output as small as it is, in
    onnxruntime and ONNX's inference.
    """
    rank = x.ndim - 2
    strides = positive("stride", strides, rank)
    dilations = steps_between(w.shape[2:], positive("dilation", dilations, rank))
    full = [
        (size - 1) * stride + (k - 1) * dilation + 1
        for size, stride, k, dilation in zip(
            x.shape[2:], strides, w.shape[2:], dilations, strict=True
        )
    ]
    extra = list(output_padding) if output_padding else [0] * rank
    if output_shape or auto_pad.startswith("SAME"):
        target = output_shape or [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
        surplus = [f + e - t for f, e, t in zip(full, extra, target[-rank:], strict=True)]
        begin, end = halves([max(n, 0) for n in surplus], larger_first=auto_pad != "SAME_UPPER")
        if output_shape:
            extra = [e + max(-n, 0) for e, n in zip(extra, surplus, strict=True)]
    else:
        check_auto_pad(auto_pad, pads)
        begin, end = explicit(pads, rank)
    if actual is not None:
        extra = [a + b + e - f for a, b, e, f in zip(actual, begin, end, full, strict=True)]
    return _for_torch(strides, dilations, begin, end, extra)


def _for_torch(
    strides: Ints, dilations: Ints, begin: Ints, end: Ints, extra: Sequence[int]
) -> Geometry:
    """Let torch cut what both ends share and add what it can; the rest is padded or cropped."""
    added, padding, rest = [], [], []
    for axis, amount in enumerate(extra):
        most = max(strides[axis], dilations[axis]) - 1
        added.append(min(max(amount, 0), most))
        rest.append(amount - added[-1])
        padding.append(max(0, min(begin[axis], end[axis] - rest[-1])))
    return Geometry(
        strides,
        dilations,
        tuple(padding),
        tuple(added),
        tuple(p - n for n, p in zip(begin, padding, strict=True)),
        tuple(r - n + p for r, n, p in zip(rest, end, padding, strict=True)),
    )
