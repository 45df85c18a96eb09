"""Rows of what stands between the matrix products of a step: norms, Gelu, sums, updates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxtrain.kernels.activation.dropout import (
    bias_dropout,
    bitmask_dropout,
    bitmask_dropout_grad,
    dropout,
)
from onnxtrain.kernels.activation.gelu import bias_fast_gelu_grad, bias_gelu
from onnxtrain.kernels.activation.gelu_sum import gelu_grad_sum
from onnxtrain.kernels.loss.projected import linear_cross_entropy_with_grad
from onnxtrain.kernels.math.finite import is_all_finite
from onnxtrain.kernels.nn.layer_norm import (
    layer_normalization,
    layer_normalization_grad_add,
    skip_layer_normalization,
)
from onnxtrain.kernels.nn.rms_norm import (
    simplified_layer_normalization,
    simplified_layer_normalization_grad,
)
from onnxtrain.kernels.optimizer.device import AdamW, adam_w
from onnxtrain.kernels.optimizer.lamb import lamb_optimizer
from onnxtrain.kernels.reduction.norm import all_l2
from onnxtrain.kernels.reduction.reduce import sum_
from op_row import BF16, F32, Row, draw, fitted, with_compiled
from op_rows import gpt2_shapes

aten = torch.ops.aten


def forward_rows() -> Iterator[Row]:
    """Normalizations with the statistics that their gradients read, as in a step of training."""
    for rows, columns in starmap(fitted, [(16384, 4096), (65536, 768), (16384, 768), (1024, 768)]):
        for dtype in (BF16, F32):
            x, skip = draw(rows, columns, dtype=dtype), draw(rows, columns, dtype=dtype)
            w, b = draw(columns, dtype=dtype), draw(columns, dtype=dtype)
            shape, size = f"({rows}, {columns})", x.nbytes

            def plain(x=x, w=w, b=b) -> list[Tensor]:
                return [*torch.native_layer_norm(x, w.shape, w, b, 1e-5)]

            yield Row(
                "LayerNormalization",
                shape,
                dtype,
                2 * size,
                lambda x=x, w=w, b=b: layer_normalization(x, w, b),
                with_compiled({"torch": plain}, plain),
                lambda f=plain, given=(x, w, b): f(*(t.double() for t in given)),
            )

            def skipped(x=x, skip=skip, w=w, b=b) -> list[Tensor]:
                total = x + skip
                return [*torch.native_layer_norm(total, w.shape, w, b, 1e-5), total]

            yield Row(
                "SkipLayerNormalization",
                shape,
                dtype,
                4 * size,
                lambda x=x, s=skip, w=w, b=b: skip_layer_normalization(x, s, w, b, epsilon=1e-5),
                with_compiled({"torch": skipped}, skipped),
                lambda f=skipped, given=(x, skip, w, b): f(*(t.double() for t in given)),
            )

            def rms(x=x, w=w) -> list[Tensor]:
                return [F.rms_norm(x, w.shape, w, 1e-5)]

            def with_inverse(x=x, w=w) -> list[Tensor]:
                wide = x.double() if x.dtype is torch.float64 else x.float()
                inverse = (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
                return [(wide * inverse * w).to(x.dtype), inverse]

            yield Row(
                "RMSNormalization",
                shape,
                dtype,
                2 * size,
                lambda x=x, w=w: simplified_layer_normalization(x, w),
                with_compiled({"torch": rms}, with_inverse),
                lambda f=with_inverse, given=(x, w): f(*(t.double() for t in given)),
            )


def norm_grad_rows() -> Iterator[Row]:
    """Gradients of the root-mean-square norm, and of a layer norm beside a residual connection."""
    for rows, columns in starmap(fitted, [(16384, 4096), (65536, 768), (1024, 768)]):
        for dtype in (BF16, F32):
            x, dy = draw(rows, columns, dtype=dtype), draw(rows, columns, dtype=dtype)
            w, residual = draw(columns, dtype=dtype), draw(rows, columns, dtype=dtype)
            _, mean, inverse = torch.native_layer_norm(x, w.shape, w, w, 1e-5)
            kept = layer_normalization(x, w, w)[1:]  # wide, which torch's are on a GPU only
            shape, size = f"({rows}, {columns})", x.nbytes

            def torchs(dy=dy, x=x, w=w, m=mean, i=inverse, r=residual) -> list[Tensor]:
                dx, *sums = aten.native_layer_norm_backward(dy, x, w.shape, m, i, w, w, [True] * 3)
                return [dx + r, *sums]

            def ours(dy=dy, x=x, w=w, kept=kept, r=residual) -> list[Tensor]:
                wanted = (True, True, True, False)
                return [*layer_normalization_grad_add(dy, x, w, *kept, r, wanted=wanted)[:3]]

            def truth(dy=dy, x=x, w=w, r=residual) -> list[Tensor]:
                wide = [t.double() for t in (dy, x, w)]
                _, m, i = torch.native_layer_norm(wide[1], w.shape, wide[2], wide[2], 1e-5)
                dx, *sums = aten.native_layer_norm_backward(
                    wide[0], wide[1], w.shape, m, i, wide[2], wide[2], [True] * 3
                )
                return [dx + r, *sums]

            peers = with_compiled({"torch": torchs}, torchs)
            yield Row(
                "LayerNormalizationGrad + residual", shape, dtype, 4 * size, ours, peers, truth
            )
            inv = simplified_layer_normalization(x, w)[1]

            def passes(kind=None, dy=dy, x=x, w=w) -> list[Tensor]:
                a, b = (t.to(kind or t.dtype).detach().requires_grad_() for t in (x, w))
                y = F.rms_norm(a, b.shape, b, 1e-5)
                return list(torch.autograd.grad(y, [a, b], dy.to(y.dtype)))

            yield Row(
                "SimplifiedLayerNormalizationGrad",
                shape,
                dtype,
                3 * size,
                lambda dy=dy, x=x, w=w, i=inv: simplified_layer_normalization_grad(dy, x, w, i),
                {"torch (with forward)": passes},
                lambda passes=passes: passes(torch.float64),
            )


def column_rows() -> Iterator[Row]:
    shapes = [(16384, 3072), (16384, 768), (65536, 768), (16384, 2304), (65536, 1000), (1024, 768)]
    for rows, columns in starmap(fitted, shapes):
        for dtype in (BF16, F32):
            x, dy = draw(rows, columns, dtype=dtype), draw(rows, columns, dtype=dtype)
            b = draw(columns, dtype=dtype)
            shape, size = f"({rows}, {columns})", x.nbytes
            yield Row(
                "ReduceSum of rows",
                shape,
                dtype,
                size,
                lambda x=x: sum_(x, (0,), False),
                with_compiled({"torch": lambda x=x: x.sum(0)}, lambda x=x: x.sum(0)),
                lambda x=x: x.double().sum(0),
            )

            def gelu_and_sum(dy=dy, x=x) -> list[Tensor]:
                dx = aten.gelu_backward(dy, x, approximate="tanh")
                return [dx, dx.sum(0)]

            yield Row(
                "FastGeluGrad + column sums",
                shape,
                dtype,
                3 * size,
                lambda dy=dy, x=x: gelu_grad_sum(dy, x, approximate="tanh"),
                with_compiled({"torch": gelu_and_sum}, gelu_and_sum),
                lambda dy=dy, x=x: [
                    aten.gelu_backward(dy.double(), x.double(), approximate="tanh")
                ],
            )

            def bias(x=x, b=b) -> Tensor:
                return F.gelu(x + b)

            yield Row(
                "BiasGelu",
                shape,
                dtype,
                2 * size,
                lambda x=x, b=b: bias_gelu(x, b),
                with_compiled({"torch": bias}, bias),
                lambda x=x, b=b: F.gelu(x.double() + b.double()),
            )

            def bias_grad(dy=dy, x=x, b=b) -> Tensor:
                return aten.gelu_backward(dy, x + b, approximate="tanh")

            yield Row(
                "BiasFastGeluGrad_dX",
                shape,
                dtype,
                3 * size,
                lambda dy=dy, x=x, b=b: bias_fast_gelu_grad(dy, x, b),
                with_compiled({"torch": bias_grad}, bias_grad),
                lambda dy=dy, x=x, b=b: aten.gelu_backward(
                    dy.double(), x.double() + b.double(), approximate="tanh"
                ),
            )


def update_rows() -> Iterator[Row]:
    """Float32 weights with 16-bit gradients and copies, as a step in mixed precision has them."""
    weights = [draw(*shape) for shape in gpt2_shapes()]
    gradients = [(torch.randn_like(w) * 1e-3).to(BF16) for w in weights]
    copies = [w.to(BF16) for w in weights]
    firsts, seconds = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    total = sum(w.numel() for w in weights)
    rate, step = (torch.tensor([n], device=weights[0].device) for n in (1e-4, 3))
    wide = [g.float() for g in gradients]
    twins = [w.clone().requires_grad_() for w in weights]
    for twin, gradient in zip(twins, wide, strict=True):
        twin.grad = gradient
    fused = torch.optim.AdamW(twins, lr=1e-4, fused=True, capturable=rate.is_cuda)

    @torch.no_grad()  # else the copies would be parts of its graph
    def torchs() -> None:
        torch._foreach_copy_(wide, gradients)
        fused.step()
        torch._foreach_copy_(copies, twins)

    form = AdamW((0.9, 0.999), 1e-8, 0.01, after=False, corrected=True)
    lists = [weights, gradients, firsts, seconds]
    shape = f"{total / 1e6:.0f}M parameters"
    yield Row(
        "AdamW bf16 gradients and copies",
        shape,
        BF16,
        28 * total,
        lambda: adam_w(lists, rate, step, form, copies=copies),
        {"torch": torchs},
    )
    yield Row(
        "IsAllFinite",
        shape,
        BF16,
        2 * total,
        lambda: is_all_finite(*gradients),
        {"torch": lambda: torch.stack([g.isfinite().all() for g in gradients]).all()},
    )
    yield Row(
        "ReduceAllL2",
        shape,
        BF16,
        2 * total,
        lambda: all_l2(*gradients),
        {"torch": lambda: torch.stack(torch._foreach_norm(gradients)).norm()},
    )


def lamb_rows() -> Iterator[Row]:
    """LAMB with 16-bit gradients and copies, which gives new tensors; torch's lists overwrite.

    The rate of a tensor depends on all of it: weights are read, and steps written and read, again.
    """
    weights = [draw(*shape) for shape in gpt2_shapes()]
    gradients = [(torch.randn_like(w) * 1e-3).to(BF16) for w in weights]
    copies = [w.to(BF16) for w in weights]
    firsts, seconds = ([torch.rand_like(w) * 1e-3 for w in weights] for _ in range(2))
    total, count = sum(w.numel() for w in weights), len(weights)
    rate, step = (torch.tensor([n], device=weights[0].device) for n in (1e-4, 3))
    fives = zip(weights, gradients, firsts, seconds, copies, strict=True)
    groups = [t for five in fives for t in five]
    numbers = {"alpha": 0.9, "beta": 0.999, "lambda_": 0.01, "epsilon": 1e-6}
    forms = {name: [number] * count for name, number in numbers.items()}
    wanted = (True,) * (1 + len(groups))
    twins, wide, moments1, moments2 = (
        [t.clone() for t in items] for items in (weights, weights, firsts, seconds)
    )

    @torch.no_grad()  # as programs call it
    def ours() -> list[Tensor | None]:
        return lamb_optimizer(None, None, None, rate, step, *groups, **forms, wanted=wanted)

    @torch.no_grad()
    def torchs() -> None:
        torch._foreach_copy_(wide, gradients)
        torch._foreach_lerp_(moments1, wide, 0.1)
        torch._foreach_mul_(moments2, 0.999)
        torch._foreach_addcmul_(moments2, wide, wide, 0.001)
        root = torch._foreach_sqrt(moments2)
        torch._foreach_add_(root, 1e-6)
        moved = torch._foreach_div(moments1, root)
        torch._foreach_add_(moved, twins, alpha=0.01)
        ratios = torch._foreach_div(torch._foreach_norm(twins), torch._foreach_norm(moved))
        torch._foreach_mul_(ratios, -1e-4)
        torch._foreach_mul_(moved, ratios)
        torch._foreach_add_(twins, moved)
        torch._foreach_copy_(copies, twins)

    yield Row(
        "LambOptimizer bf16 gradients and copies",
        f"{total / 1e6:.0f}M parameters",
        BF16,
        38 * total,
        ours,
        {"torch": torchs},
    )


def dropout_rows() -> Iterator[Row]:
    ratio = 0.1
    for rows, columns in starmap(fitted, [(16384, 4096), (16384, 1024)]):
        for dtype in (BF16, F32):
            x, b = draw(rows, columns, dtype=dtype), draw(columns, dtype=dtype)
            residual = draw(rows, columns, dtype=dtype)
            mask = bitmask_dropout(x, ratio, True)[1]
            kept = dropout(x, ratio, True)[1]
            shape, size = f"({rows}, {columns})", x.nbytes
            count = x.numel()
            peer = {"torch": lambda x=x: torch.native_dropout(x, ratio, True)}
            yield Row(
                "Dropout", shape, dtype, 2 * size + count, lambda x=x: dropout(x, ratio, True), peer
            )
            yield Row(
                "BitmaskDropout",
                shape,
                dtype,
                2 * size + count // 8,
                lambda x=x: bitmask_dropout(x, ratio, True),
                peer,
            )
            yield Row(
                "BitmaskDropoutGrad",
                shape,
                dtype,
                2 * size + count // 8,
                lambda x=x, m=mask: bitmask_dropout_grad(x, m, ratio, True),
                {"torch": lambda x=x, m=kept: aten.native_dropout_backward(x, m, 1 / (1 - ratio))},
            )

            def biased(x=x, b=b, r=residual) -> Tensor:
                return F.dropout(x + b, ratio) + r

            yield Row(
                "BiasDropout",
                shape,
                dtype,
                3 * size + count,
                lambda x=x, b=b, r=residual: bias_dropout(x, b, r, ratio, True),
                with_compiled({"torch": biased}, biased),
            )


def linear_loss_rows() -> Iterator[Row]:
    """The head of a language model with its loss; the bytes are those of the scores, once each."""
    for classes in (50257, 50304):
        rows, width, one = fitted(16384, classes)[0], 768, draw().fill_(1)
        x, w = draw(rows, width, dtype=BF16), draw(classes, width, dtype=BF16) * 0.02
        labels = torch.randint(0, classes, (rows,), device=x.device)

        def torchs(x=x, w=w, labels=labels) -> list[Tensor]:
            a, b = (t.detach().requires_grad_() for t in (x, w))
            loss = F.cross_entropy(a @ b.T, labels)
            return list(torch.autograd.grad(loss, [a, b]))

        def ours(x=x, w=w, labels=labels, one=one) -> list[Tensor]:
            _, dx, dw, _ = linear_cross_entropy_with_grad(x, w, labels, one, output_type=1)
            return [dx, dw]

        yield Row(
            "Linear + CrossEntropy + gradients",
            f"({rows}, {width}) x {classes}",
            BF16,
            2 * rows * classes * 2,
            ours,
            with_compiled({"torch": torchs}, torchs),
        )
