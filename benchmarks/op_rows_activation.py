"""Rows of gradients of activations, of a softmax with a bias, and of losses with weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import starmap

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxtrain.kernels.activation.bias_softmax import bias_softmax
from onnxtrain.kernels.activation.dropout import dropout_grad
from onnxtrain.kernels.activation.gelu import (
    bias_gelu_grad,
    gelu,
    gelu_grad,
    quick_gelu,
    quick_gelu_grad,
)
from onnxtrain.kernels.loss.cross_entropy import (
    softmax_cross_entropy_loss_internal,
    softmax_cross_entropy_loss_internal_grad,
)
from op_row import BF16, F32, Call, Row, draw, fitted, with_compiled

aten = torch.ops.aten
Pairs = Sequence[tuple[int, int]]
QUICK = 1.702
IGNORED = 7


def activation_rows(shapes: Pairs = ((16384, 4096), (256, 768))) -> Iterator[Row]:
    for rows, columns in starmap(fitted, shapes):
        for dtype in (BF16, F32):
            x, dy, b = (draw(rows, columns, dtype=dtype) for _ in range(3))
            b = b[0].clone()
            for name, moved, ours, torchs, given in _activations(x, dy, b):
                yield _row(name, moved * x.nbytes, ours, torchs, given)
            yield _dropout_grad(dy, torch.rand(x.shape, device=x.device) > 0.1)


def _dropout_grad(dy: Tensor, kept: Tensor) -> Row:
    def torchs() -> Tensor:
        return aten.native_dropout_backward(dy, kept, 1 / 0.9)

    return Row(
        "DropoutGrad",
        str(tuple(dy.shape)),
        dy.dtype,
        2 * dy.nbytes + kept.nbytes,
        lambda: dropout_grad(dy, kept, 0.1, True),
        with_compiled({"torch": torchs}, torchs),
        lambda: dy.double() / 0.9 * kept,
    )


def _activations(
    x: Tensor, dy: Tensor, b: Tensor
) -> list[tuple[str, int, Call, Call, tuple[Tensor, ...]]]:
    """Names, tensors that move, ours, torch's, and what both are called with."""

    def sigmoid_grad(dy: Tensor, x: Tensor) -> Tensor:
        s = torch.sigmoid(QUICK * x)
        return dy * (s + QUICK * x * s * (1 - s))

    return [
        ("Gelu", 2, gelu, aten.gelu, (x,)),
        ("GeluGrad", 3, gelu_grad, aten.gelu_backward, (dy, x)),
        ("QuickGelu", 2, quick_gelu, lambda x: x * torch.sigmoid(QUICK * x), (x,)),
        ("QuickGeluGrad", 3, quick_gelu_grad, sigmoid_grad, (dy, x)),
        ("BiasGeluGrad_dX", 3, bias_gelu_grad, lambda g, x, b: aten.gelu_backward(g, x + b),
         (dy, x, b)),
    ]  # fmt: skip


def _row(name: str, moved: int, ours: Call, torchs: Call, given: tuple[Tensor, ...]) -> Row:
    """A row of functions of the same tensors, of which those of torch are true in float64."""

    def peer() -> Tensor:
        return torchs(*given)

    return Row(
        name,
        str(tuple(given[0].shape)),
        given[0].dtype,
        moved,
        lambda: ours(*given),
        with_compiled({"torch": peer}, peer),
        lambda: torchs(*(t.double() for t in given)),
    )


def bias_alone_rows(
    shapes: Sequence[tuple[int, int, int, int]] = ((64, 12, 512, 512), (8, 12, 64, 64)),
) -> Iterator[Row]:
    """Attention's scores with a bias, without dropout behind."""
    for shape in starmap(fitted, shapes):
        for dtype in (BF16, F32):
            x, bias = draw(*shape, dtype=dtype), draw(shape[0], 1, 1, shape[3], dtype=dtype)

            def ours(x: Tensor, bias: Tensor) -> Tensor:
                return bias_softmax(x, bias, axis=3, is_inner_broadcast=1)

            def torchs(x: Tensor, bias: Tensor) -> Tensor:
                return torch.softmax(x + bias, -1)

            yield _row("BiasSoftmax", 2 * x.nbytes, ours, torchs, (x, bias))


def weighted_loss_rows(shapes: Pairs = ((8192, 32000), (256, 1000))) -> Iterator[Row]:
    """A loss whose classes have weights and of which one is ignored, in two operators."""
    for rows, classes in starmap(fitted, shapes):
        for dtype in (BF16, F32):
            z = draw(rows, classes, dtype=dtype)
            labels = torch.randint(0, classes, (rows,), device=z.device)
            labels[1::9] = IGNORED
            weights = (torch.rand(classes, device=z.device) + 0.5).to(dtype)
            yield _weighted_loss(z, labels, weights)
            yield _weighted_loss_grad(torch.log_softmax(z, 1), labels, weights)


def _weighted_loss(z: Tensor, labels: Tensor, weights: Tensor) -> Row:
    def torchs(z: Tensor = z, weights: Tensor = weights) -> list[Tensor]:
        log_prob = torch.log_softmax(z, 1)
        return [F.nll_loss(log_prob, labels, weights, ignore_index=IGNORED), log_prob]

    return Row(
        "SoftmaxCrossEntropyLossInternal",
        str(tuple(z.shape)),
        z.dtype,
        2 * z.nbytes,
        lambda: softmax_cross_entropy_loss_internal(z, labels, weights, IGNORED),
        with_compiled({"torch": torchs}, torchs),
        lambda: torchs(z.double(), weights.double()),
    )


def _weighted_loss_grad(log_prob: Tensor, labels: Tensor, weights: Tensor) -> Row:
    one = torch.ones((), device=log_prob.device)
    each = torch.where(labels == IGNORED, 0, weights[labels])
    kept = each.sum()

    def torchs(total: Tensor = kept) -> Tensor:
        rest = (labels, weights, 1, IGNORED, total)
        inner = aten.nll_loss_backward(one.to(log_prob.dtype), log_prob, *rest)
        return aten._log_softmax_backward_data(inner, log_prob, 1, log_prob.dtype)

    def of_inputs() -> Tensor:
        """From what the operator gets, where torch's own has kept the sum of the weights."""
        return torchs(torch.where(labels == IGNORED, 0, weights[labels]).sum())

    def truth() -> Tensor:
        share = each.double() / each.double().sum()
        grad = log_prob.double().exp()
        grad[torch.arange(len(labels), device=labels.device), labels] -= 1
        return grad * share[:, None]

    return Row(
        "SoftmaxCrossEntropyLossInternalGrad",
        str(tuple(log_prob.shape)),
        log_prob.dtype,
        2 * log_prob.nbytes,
        lambda: softmax_cross_entropy_loss_internal_grad(one, log_prob, labels, weights, IGNORED),
        with_compiled({"torch": torchs}, of_inputs),
        truth,
    )
