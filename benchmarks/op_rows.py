"""Rows of operators whose gradients are bound by memory, and of the optimizer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxtrain.kernels.activation.bias_softmax import bias_softmax_dropout, softmax_dropout_grad
from onnxtrain.kernels.activation.softmax import (
    log_softmax,
    log_softmax_grad,
    softmax,
    softmax_grad,
)
from onnxtrain.kernels.loss.cross_entropy import (
    softmax_cross_entropy_loss,
    softmax_cross_entropy_loss_grad,
)
from onnxtrain.kernels.loss.with_grad import cross_entropy_with_grad
from onnxtrain.kernels.nn.layer_norm import layer_normalization, layer_normalization_grad
from onnxtrain.kernels.optimizer.sequence import adam_w_optimizer, inplace_clip_grad_norm
from onnxtrain.kernels.tensor.gather import gather_elements_grad, gather_grad
from op_row import BF16, F32, Call, Row, draw, fitted, with_compiled

aten = torch.ops.aten


def softmax_rows() -> Iterator[Row]:
    for shape, axis in [
        ((192, 1024, 1024), -1),
        ((32, 1024, 4096), 1),
        ((65536, 128), -1),
        ((512, 131072), -1),
        ((256, 256), -1),
        ((64, 12, 128, 128), -1),
        ((1048576, 16), -1),
        ((128, 524288), -1),
        ((8192, 50257), -1),
        ((524288, 197), -1),
        ((16, 64, 256), 1),
    ]:
        shape = fitted(*shape)
        for dtype in (BF16, F32):
            moved = 3 * math.prod(shape) * dtype.itemsize
            dy = draw(*shape, dtype=dtype)
            y = torch.softmax(draw(*shape), axis).to(dtype)

            def peer(dy=dy, y=y, axis=axis) -> Tensor:
                return aten._softmax_backward_data(dy, y, axis, dy.dtype)

            yield Row(
                "SoftmaxGrad",
                f"{shape} axis {axis}",
                dtype,
                moved,
                lambda dy=dy, y=y, axis=axis: softmax_grad(dy, y, axis=axis),
                with_compiled({"torch": peer}, peer),
                lambda dy=dy, y=y, axis=axis: (
                    y.double() * (dy.double() - (y.double() * dy.double()).sum(axis, keepdim=True))
                ),
            )
            y = torch.log_softmax(draw(*shape), axis).to(dtype)

            def log_peer(dy=dy, y=y, axis=axis) -> Tensor:
                return aten._log_softmax_backward_data(dy, y, axis, dy.dtype)

            yield Row(
                "LogSoftmaxGrad",
                f"{shape} axis {axis}",
                dtype,
                moved,
                lambda dy=dy, y=y, axis=axis: log_softmax_grad(dy, y, axis=axis),
                with_compiled({"torch": log_peer}, log_peer),
                lambda dy=dy, y=y, axis=axis: (
                    dy.double() - y.double().exp() * dy.double().sum(axis, keepdim=True)
                ),
            )


def softmax_forward_rows() -> Iterator[Row]:
    for shape, axis in [
        ((192, 1024, 1024), -1),
        ((32, 1024, 4096), 1),
        ((65536, 128), -1),
        ((512, 131072), -1),
        ((256, 256), -1),
        ((1048576, 16), -1),
        ((128, 524288), -1),
        ((8192, 50257), -1),
        ((524288, 197), -1),
        ((16, 64, 256), 1),
    ]:
        shape = fitted(*shape)
        for dtype in (BF16, F32):
            x = draw(*shape, dtype=dtype)
            for name, ours, torchs in (
                ("Softmax", softmax, torch.softmax),
                ("LogSoftmax", log_softmax, torch.log_softmax),
            ):

                def peer(x=x, axis=axis, torchs=torchs) -> Tensor:
                    return torchs(x, axis)

                yield Row(
                    name,
                    f"{shape} axis {axis}",
                    dtype,
                    2 * x.nbytes,
                    lambda x=x, axis=axis, ours=ours: ours(x, axis=axis),
                    with_compiled({"torch": peer}, peer),
                    lambda x=x, axis=axis, torchs=torchs: torchs(x.double(), axis),
                )


def bias_softmax_rows() -> Iterator[Row]:
    """Attention's scores with a bias, then dropout, and the gradient of both."""
    ratio, shape = 0.1, fitted(64, 12, 512, 512)
    for dtype in (BF16, F32):
        x, bias = draw(*shape, dtype=dtype), draw(shape[0], 1, 1, 512, dtype=dtype)
        y, kept = torch.softmax(x, -1), torch.rand(shape, device=x.device) > ratio

        def peer(x=x, bias=bias) -> tuple[Tensor, ...]:
            soft = torch.softmax(x + bias, -1)
            return (*torch.native_dropout(soft, ratio, True), soft)

        def peer_grad(dy=x, y=y, kept=kept) -> Tensor:
            inner = aten.native_dropout_backward(dy, kept, 1 / (1 - ratio))
            return aten._softmax_backward_data(inner, y, -1, dy.dtype)

        def ours(x=x, bias=bias) -> tuple[Tensor, ...]:
            return bias_softmax_dropout(x, bias, ratio, axis=3, is_inner_broadcast=1)

        for name, call, torchs in (
            ("BiasSoftmaxDropout", ours, peer),
            (
                "SoftmaxDropoutGrad",
                lambda dy=x, y=y, kept=kept: softmax_dropout_grad(dy, kept, y, ratio, axis=3),
                peer_grad,
            ),
        ):
            yield Row(
                name,
                f"{shape} axis -1",
                dtype,
                3 * x.nbytes + x.numel(),
                call,
                with_compiled({"torch": torchs}, torchs),
            )


def norm_rows() -> Iterator[Row]:
    for shape in [(16384, 4096), (65536, 768), (4096, 768), (256, 768)]:
        rows, columns = fitted(*shape)
        for dtype in (BF16, F32):
            x, dy = draw(rows, columns, dtype=dtype), draw(rows, columns, dtype=dtype)
            w = draw(columns, dtype=dtype)
            _, mean, inverse = torch.native_layer_norm(x, [columns], w, w, 1e-5)
            kept = layer_normalization(x, w, w)[1:]  # wide, which torch's are on a GPU only

            def truth(x=x, dy=dy, w=w, c=columns) -> list[Tensor]:
                wide = [t.double() for t in (dy, x, w)]
                _, m, i = torch.native_layer_norm(wide[1], [c], wide[2], wide[2], 1e-5)
                return list(
                    aten.native_layer_norm_backward(
                        wide[0], wide[1], [c], m, i, wide[2], wide[2], [True] * 3
                    )
                )

            def peer(dy=dy, x=x, w=w, m=mean, i=inverse, c=columns) -> tuple[Tensor, ...]:
                return aten.native_layer_norm_backward(dy, x, [c], m, i, w, w, [True] * 3)

            yield Row(
                "LayerNormalizationGrad",
                f"({rows}, {columns})",
                dtype,
                3 * x.numel() * dtype.itemsize,
                lambda dy=dy, x=x, w=w, kept=kept: layer_normalization_grad(dy, x, w, *kept),
                with_compiled({"torch": peer}, peer),
                truth,
            )


def loss_rows() -> Iterator[Row]:
    shapes = [(8192, 50304), (8192, 50257), (4096, 128256), (256, 1000)]
    for rows, classes in itertools.starmap(fitted, shapes):
        one = draw().fill_(1)
        for dtype in (BF16, F32):
            z = draw(rows, classes, dtype=dtype)
            labels = torch.randint(0, classes, (rows,), device=z.device)

            def both(z=z, labels=labels, one=one) -> Tensor:
                _, log_prob = softmax_cross_entropy_loss(z, labels)
                return softmax_cross_entropy_loss_grad(one, log_prob, labels)

            def fused(z=z, labels=labels, one=one) -> Tensor:
                return cross_entropy_with_grad(z, labels, one, output_type=1)[0]

            def peer(z=z, labels=labels) -> Tensor:
                z = z.detach().requires_grad_()
                F.cross_entropy(z, labels).backward()
                return z.grad

            def loss(z=z, labels=labels) -> tuple[Tensor, Tensor]:
                log_prob = torch.log_softmax(z, 1)
                return F.nll_loss(log_prob, labels), log_prob

            def loss_grad(found: tuple[Tensor, Tensor], labels=labels) -> Tensor:
                return closed_loss_grad(found[1], labels)

            def truth(z=z, labels=labels) -> Tensor:
                p = torch.softmax(z.double() if z.numel() < 1 << 28 else z.float(), 1)
                p[torch.arange(len(labels), device=z.device), labels] -= 1
                return p / len(labels)

            moved = 2 * z.numel() * dtype.itemsize
            shape = f"({rows}, {classes})"
            # two operators, with log probabilities that are written by one and read by the other
            two = with_compiled({"torch": peer}, loss, loss_grad)
            yield Row("CrossEntropy+Grad", shape, dtype, 2 * moved, both, two, truth)
            peers = with_compiled({"torch": peer}, peer)
            yield Row("CrossEntropy+Grad fused", shape, dtype, moved, fused, peers, truth)

            def in_place(z=z, labels=labels, one=one) -> Tensor:
                return cross_entropy_with_grad(z, labels, one, output_type=1, out=z)[0]

            yield Row(
                "CrossEntropy+Grad in place",
                shape,
                dtype,
                moved,
                in_place,
                liger_cross_entropy(z, labels) or peers,
            )


def closed_loss_grad(log_prob: Tensor, labels: Tensor) -> Tensor:
    """(p - 1 at the label) / rows, as one expression for a compiler."""
    hit = torch.arange(log_prob.shape[1], device=labels.device) == labels[:, None]
    return ((torch.exp(log_prob.float()) - hit.float()) / len(labels)).to(log_prob.dtype)


def liger_cross_entropy(z: Tensor, labels: Tensor) -> dict[str, Call]:
    """Liger's kernel, which overwrites the scores too, if one that takes these is installed."""
    arguments = (None, -100, 0.0, 0.0, "mean", None, False)
    try:
        from liger_kernel.ops.cross_entropy import cross_entropy_forward

        cross_entropy_forward(z[:8].clone(), labels[:8], *arguments)
    except (ImportError, TypeError):
        return {}
    return {"Liger": lambda: cross_entropy_forward(z, labels, *arguments)}


def gather_rows() -> Iterator[Row]:
    """Indices of any row alike, and those of which the first rows have most, as words of a text."""
    gpt2, bert = (
        [(50304, 768, 16384), (50304, 768, 65536)],
        [(30522, 1024, 16384), (30522, 768, 1024)],
    )
    for words, width, read in [*gpt2, *bert, (128256, 4096, 16384)]:
        count, tokens = fitted(words, width)[0], fitted(read, width)[0]
        for dtype, power in itertools.product((BF16, F32), (1, 4)):
            dy = draw(tokens, width, dtype=dtype)
            index = (torch.rand(tokens, device=dy.device) ** power * count).long()
            yield Row(
                "GatherGrad",
                f"V{count} D{width} T{tokens}" + (" skewed" if power > 1 else ""),
                dtype,
                (count + tokens) * width * dtype.itemsize,
                lambda dy=dy, i=index, c=count, w=width: gather_grad([c, w], i, dy, axis=0),
                {
                    "torch": lambda dy=dy, i=index, c=count: aten.embedding_dense_backward(
                        dy, i, c, -1, False
                    ),
                    "torch index_add": lambda dy=dy, i=index, c=count, w=width: dy.new_zeros(
                        c, w
                    ).index_add_(0, i, dy),
                },
                lambda dy=dy, i=index, c=count, w=width: torch.zeros(
                    c, w, dtype=torch.float64, device=dy.device
                ).index_add_(0, i, dy.double()),
            )
    for shape, picks in [((8192, 50304), 64), ((4096, 4096), 4096)]:
        rows, columns = fitted(*shape)
        for dtype in (BF16, F32):
            dy = draw(rows, picks, dtype=dtype)
            index = torch.randint(0, columns, (rows, picks), device=dy.device)
            yield Row(
                "GatherElementsGrad",
                f"({rows}, {columns}) k{picks}",
                dtype,
                rows * columns * dtype.itemsize + dy.numel() * (dtype.itemsize + 8),
                lambda dy=dy, i=index, s=[rows, columns]: gather_elements_grad(
                    dy, s, i, axis=1, deterministic=False
                ),
                {
                    "torch": lambda dy=dy, i=index, s=[rows, columns]: dy.new_zeros(s).scatter_add_(
                        1, i, dy
                    )
                },
                lambda dy=dy, i=index, s=[rows, columns]: torch.zeros(
                    s, dtype=torch.float64, device=dy.device
                ).scatter_add_(1, i, dy.double()),
            )


def gpt2_shapes() -> list[tuple[int, ...]]:
    layer = [(768, 2304), (2304,), (768, 768), (768,), (768, 3072), (3072,), (3072, 768), (768,)]
    words, width = fitted(50257, 768)
    return [
        (words, width),
        (1024, 768),
        *([*layer, (768,), (768,), (768,), (768,)] * (12 if words == 50257 else 2)),
        (768,),
        (768,),
    ]


def optimizer_rows() -> Iterator[Row]:
    weights = [draw(*shape) for shape in gpt2_shapes()]
    gradients = [torch.randn_like(w) * 1e-3 for w in weights]
    firsts, seconds = [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    total = sum(w.numel() for w in weights)
    twins = [w.clone().requires_grad_() for w in weights]
    for twin, gradient in zip(twins, gradients, strict=True):
        twin.grad = gradient.clone()
    fused = torch.optim.AdamW(twins, lr=1e-4, fused=True, capturable=weights[0].is_cuda)
    default = torch.optim.AdamW(twins, lr=1e-4)
    yield Row(
        "AdamW",
        f"{total / 1e6:.0f}M parameters",
        F32,
        28 * total,
        lambda: adam_w_optimizer(1e-4, 3, weights, gradients, firsts, seconds),
        {"torch fused": fused.step, "torch": default.step},
    )
    # a limit below that of the call before: gradients that are short enough would not be written
    limits = (0.1 * 0.999**call for call in itertools.count())
    yield Row(
        "InplaceClipGradNorm",
        f"{total / 1e6:.0f}M parameters",
        F32,
        12 * total,
        lambda: inplace_clip_grad_norm(gradients, max_norm=next(limits)),
        {"torch": lambda: torch.nn.utils.clip_grad_norm_(twins, next(limits))},
        alike=False,
    )
