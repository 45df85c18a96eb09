"""Rows of what stands between the convolutions of images: batch normalization and pools.

One row is a convolution's gradient, which is torch's: it shows that calling it costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import starmap

import torch
from torch import Tensor

from onnxtrain.kernels.nn.batch_norm import batch_norm_internal, batch_normalization_grad
from onnxtrain.kernels.nn.conv import conv_grad
from onnxtrain.kernels.nn.max_pool import max_pool, max_pool_grad
from onnxtrain.kernels.nn.pool import average_pool_grad
from op_row import BF16, F32, Row, draw, fitted, with_compiled, working

aten = torch.ops.aten
Shape = tuple[int, int, int, int]
LAYOUTS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}
NORMALIZED: list[Shape] = [(128, 64, 112, 112), (128, 256, 56, 56), (32, 64, 8, 8)]
POOLED: list[Shape] = [(128, 64, 112, 112), (32, 64, 8, 8)]
CONVOLVED: list[Shape] = [(64, 64, 56, 56)]
EPSILON = 1e-5


def images(shapes: Sequence[Shape]) -> Iterator[tuple[str, Tensor]]:
    """Images of both types in both layouts, and what they are called."""
    for shape in starmap(fitted, shapes):
        for layout, memory in LAYOUTS.items():
            for dtype in (BF16, F32):
                yield f"{shape} {layout}", draw(*shape, dtype=dtype).to(memory_format=memory)


def batch_norm_rows(shapes: Sequence[Shape] = NORMALIZED) -> Iterator[Row]:
    """Statistics come before the first result: what is normalized is read twice."""
    for name, x in images(shapes):
        yield _batch_norm(name, x)
        yield _batch_norm_grad(name, x)


def _parameters(x: Tensor) -> list[Tensor]:
    """Scale and shift, running mean and variance."""
    scale, shift = draw(x.shape[1]), draw(x.shape[1])
    return [scale, shift, torch.zeros_like(scale), torch.ones_like(scale)]


def _batch_norm(name: str, x: Tensor) -> Row:
    parameters = _parameters(x)
    peers = {
        "torch": lambda: aten.native_batch_norm(x, *parameters, True, 0.1, EPSILON)[0],
        "cuDNN": lambda: aten.cudnn_batch_norm(x, *parameters, True, 0.1, EPSILON)[0],
    }

    def truth() -> Tensor:
        wide = x.double()
        deviation, mean = torch.std_mean(wide, (0, 2, 3), correction=0, keepdim=True)
        scale, shift = (p.double().view(1, -1, 1, 1) for p in parameters[:2])
        return (wide - mean) / (deviation.square() + EPSILON).sqrt() * scale + shift

    return Row(
        "BatchNormalization",
        name,
        x.dtype,
        3 * x.nbytes,
        lambda: batch_norm_internal(x, *parameters, epsilon=EPSILON, update=True)[0],
        with_compiled(working(peers), peers["torch"]),
        truth,
    )


def _batch_norm_grad(name: str, x: Tensor) -> Row:
    scale, shift, *running = _parameters(x)
    dy = torch.randn_like(x)
    var, mean = torch.var_mean(x.float(), (0, 2, 3), correction=0)
    inverse = (var + EPSILON).rsqrt()
    every = [True, True, True]
    reserve: list[Tensor] = []

    def cudnn() -> tuple[Tensor, ...]:
        if not reserve:
            given = (x, scale, shift, *running, True, 0.1, EPSILON)
            reserve.append(aten.cudnn_batch_norm(*given)[3])
        return aten.cudnn_batch_norm_backward(
            x, dy, scale, *running, mean, inverse, EPSILON, *reserve
        )

    def torchs() -> tuple[Tensor, ...]:
        given = (dy, x, scale, *running, mean, inverse)
        return aten.native_batch_norm_backward(*given, True, EPSILON, every)

    def truth() -> list[Tensor]:
        sides = (0, 2, 3)
        m, r, w = (p.double().view(1, -1, 1, 1) for p in (mean, inverse, scale))
        grad, unit = dy.double(), (x.double() - m) * r
        dscale, dbias = (grad * unit).sum(sides, keepdim=True), grad.sum(sides, keepdim=True)
        count = x.numel() // x.shape[1]
        return [w * r * (grad - (dbias + unit * dscale) / count), dscale.flatten(), dbias.flatten()]

    return Row(
        "BatchNormalizationGrad",
        name,
        x.dtype,
        5 * x.nbytes,
        lambda: batch_normalization_grad(dy, x, scale, mean, inverse, epsilon=EPSILON),
        with_compiled(working({"torch": torchs, "cuDNN": cudnn}), torchs),
        truth,
    )


def pool_rows(shapes: Sequence[Shape] = POOLED) -> Iterator[Row]:
    """Windows of 3 x 3 at every other place.

    Means are without padding, for which torch 2.11 has wrong gradients if channels are last.
    """
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2]}
    padded = {**attributes, "pads": [1, 1, 1, 1]}
    window = ([3, 3], [2, 2], [1, 1])
    for name, x in images(shapes):
        y, index = max_pool(x, **padded, wanted=(True, True))
        plane = aten.max_pool2d_with_indices(x, *window)[1]
        dy, shape = torch.randn_like(y), tuple(x.shape)

        def most(dy=dy, x=x, plane=plane) -> Tensor:
            return aten.max_pool2d_with_indices_backward(dy, x, *window, [1, 1], False, plane)

        yield Row(
            "MaxPoolGrad",
            name,
            x.dtype,
            x.nbytes + dy.nbytes + index.nbytes,
            lambda dy=dy, i=index, s=shape: max_pool_grad(dy, i, s, **padded, out_shape=s),
            with_compiled({"torch": most}, most),
            lambda dy=dy, x=x, most=most: most(dy.double(), x.double()),
        )

        dy = torch.randn_like(aten.avg_pool2d(x, *window[:2]))

        def mean(dy=dy, x=x) -> Tensor:
            return aten.avg_pool2d_backward(dy, x, *window[:2], [0, 0], False, False, None)

        yield Row(
            "AveragePoolGrad",
            name,
            x.dtype,
            x.nbytes + dy.nbytes,
            lambda dy=dy, s=shape: average_pool_grad(dy, s, **attributes, out_shape=s),
            with_compiled({"torch": mean}, mean),
            lambda dy=dy, x=x, mean=mean: mean(dy.double(), x.double()),
        )


def conv_rows(shapes: Sequence[Shape] = CONVOLVED) -> Iterator[Row]:
    """The least that moves says little here: tensor cores set the time."""
    for shape in starmap(fitted, shapes):
        channels = shape[1]
        x, dy = (draw(*shape, dtype=BF16).to(memory_format=torch.channels_last) for _ in range(2))
        w = draw(channels, channels, 3, 3, dtype=BF16).to(memory_format=torch.channels_last)

        def torchs(dy=dy, x=x, w=w) -> list[Tensor]:
            window, rest = ([1, 1], [1, 1], [1, 1]), ([0, 0], 1, [True, True, False])
            return list(aten.convolution_backward(dy, x, w, None, *window, False, *rest)[:2])

        def ours(dy=dy, x=x, w=w) -> list[Tensor]:
            return list(conv_grad(dy, x, w, pads=[1, 1, 1, 1], wanted=(True, True))[:2])

        yield Row(
            "ConvGrad",
            f"{shape} 3 x 3 channels last",
            BF16,
            3 * x.nbytes + 2 * w.nbytes,
            ours,
            {"cuDNN" if x.is_cuda else "torch": torchs},
            lambda dy=dy, x=x, w=w, torchs=torchs: torchs(dy.float(), x.float(), w.float()),
        )
