"""Operators bound by memory on a GPU, against torch, in one run: time and share of a copy's speed.

python benchmarks/ops.py [--save] [--only softmax]
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxtrain.kernels.activation.softmax import log_softmax_grad, softmax_grad
from onnxtrain.kernels.fast import load
from onnxtrain.kernels.loss.cross_entropy import (
    softmax_cross_entropy_loss,
    softmax_cross_entropy_loss_grad,
)
from onnxtrain.kernels.nn.layer_norm import layer_normalization_grad
from onnxtrain.kernels.optimizer.sequence import adam_w_optimizer, inplace_clip_grad_norm
from onnxtrain.kernels.tensor.gather import gather_elements_grad, gather_grad
from report import append, table

aten = torch.ops.aten
BF16, F32 = torch.bfloat16, torch.float32
Call = Callable[[], Any]


@dataclasses.dataclass
class Row:
    """One operator at one shape: ours, peers, the truth, the fewest bytes that must move."""

    name: str
    shape: str
    dtype: torch.dtype
    bytes: int
    ours: Call
    peers: dict[str, Call]
    truth: Call | None = None


def draw(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def softmax_rows() -> Iterator[Row]:
    for shape, axis in [
        ((192, 1024, 1024), -1),
        ((32, 1024, 4096), 1),
        ((65536, 128), -1),
        ((512, 131072), -1),
        ((256, 256), -1),
        ((64, 12, 128, 128), -1),
    ]:
        for dtype in (BF16, F32):
            moved = 3 * math.prod(shape) * dtype.itemsize
            dy = draw(*shape, dtype=dtype)
            y = torch.softmax(draw(*shape), axis).to(dtype)
            yield Row(
                "SoftmaxGrad",
                f"{shape} axis {axis}",
                dtype,
                moved,
                lambda dy=dy, y=y, axis=axis: softmax_grad(dy, y, axis=axis),
                {
                    "torch": lambda dy=dy, y=y, axis=axis: aten._softmax_backward_data(
                        dy, y, axis, dy.dtype
                    )
                },
                lambda dy=dy, y=y, axis=axis: (
                    y.double() * (dy.double() - (y.double() * dy.double()).sum(axis, keepdim=True))
                ),
            )
            y = torch.log_softmax(draw(*shape), axis).to(dtype)
            yield Row(
                "LogSoftmaxGrad",
                f"{shape} axis {axis}",
                dtype,
                moved,
                lambda dy=dy, y=y, axis=axis: log_softmax_grad(dy, y, axis=axis),
                {
                    "torch": lambda dy=dy, y=y, axis=axis: aten._log_softmax_backward_data(
                        dy, y, axis, dy.dtype
                    )
                },
                lambda dy=dy, y=y, axis=axis: (
                    dy.double() - y.double().exp() * dy.double().sum(axis, keepdim=True)
                ),
            )


def norm_rows() -> Iterator[Row]:
    for rows, columns in [(16384, 4096), (65536, 768), (4096, 768), (256, 768)]:
        for dtype in (BF16, F32):
            x, dy = draw(rows, columns, dtype=dtype), draw(rows, columns, dtype=dtype)
            w = draw(columns, dtype=dtype)
            _, mean, inverse = torch.native_layer_norm(x, [columns], w, w, 1e-5)

            def truth(x=x, dy=dy, w=w, c=columns) -> list[Tensor]:
                wide = [t.double() for t in (dy, x, w)]
                _, m, i = torch.native_layer_norm(wide[1], [c], wide[2], wide[2], 1e-5)
                return list(
                    aten.native_layer_norm_backward(
                        wide[0], wide[1], [c], m, i, wide[2], wide[2], [True] * 3
                    )
                )

            yield Row(
                "LayerNormalizationGrad",
                f"({rows}, {columns})",
                dtype,
                3 * x.numel() * dtype.itemsize,
                lambda dy=dy, x=x, w=w, m=mean, i=inverse: layer_normalization_grad(dy, x, w, m, i),
                {
                    "torch": lambda dy=dy, x=x, w=w, m=mean, i=inverse, c=columns: (
                        aten.native_layer_norm_backward(dy, x, [c], m, i, w, w, [True] * 3)
                    )
                },
                truth,
            )


def loss_rows() -> Iterator[Row]:
    one = torch.ones((), device="cuda")
    for rows, classes in [(8192, 50304), (4096, 128256), (256, 1000)]:
        for dtype in (BF16, F32):
            z = draw(rows, classes, dtype=dtype)
            labels = torch.randint(0, classes, (rows,), device="cuda")

            def both(z=z, labels=labels) -> Tensor:
                _, log_prob = softmax_cross_entropy_loss(z, labels)
                return softmax_cross_entropy_loss_grad(one.to(z.dtype), log_prob, labels)

            def fused(z=z, labels=labels) -> Tensor:
                share = torch.full((z.shape[0],), 1 / z.shape[0], device="cuda")
                return load("cross_entropy").loss_and_grad(z, labels, share)[0]

            def peer(z=z, labels=labels) -> Tensor:
                z = z.detach().requires_grad_()
                F.cross_entropy(z, labels).backward()
                return z.grad

            def truth(z=z, labels=labels) -> Tensor:
                p = torch.softmax(z.double() if z.numel() < 1 << 28 else z.float(), 1)
                p[torch.arange(len(labels), device="cuda"), labels] -= 1
                return p / len(labels)

            moved = 2 * z.numel() * dtype.itemsize
            shape = f"({rows}, {classes})"
            yield Row("CrossEntropy+Grad", shape, dtype, moved, both, {"torch": peer}, truth)
            yield Row("CrossEntropy+Grad fused", shape, dtype, moved, fused, {"torch": peer}, truth)


def gather_rows() -> Iterator[Row]:
    for count, width, tokens in [(50304, 768, 16384), (50304, 768, 65536), (30522, 1024, 16384)]:
        for dtype in (BF16, F32):
            dy = draw(tokens, width, dtype=dtype)
            skewed = (torch.rand(tokens, device="cuda") ** 4 * count).long()
            yield Row(
                "GatherGrad",
                f"V{count} D{width} T{tokens}",
                dtype,
                (count + tokens) * width * dtype.itemsize,
                lambda dy=dy, i=skewed, c=count, w=width: gather_grad([c, w], i, dy, axis=0),
                {
                    "torch": lambda dy=dy, i=skewed, c=count: aten.embedding_dense_backward(
                        dy, i, c, -1, False
                    ),
                    "torch index_add": lambda dy=dy, i=skewed, c=count, w=width: dy.new_zeros(
                        c, w
                    ).index_add_(0, i, dy),
                },
                lambda dy=dy, i=skewed, c=count, w=width: torch.zeros(
                    c, w, dtype=torch.float64, device="cuda"
                ).index_add_(0, i, dy.double()),
            )
    for rows, columns, picks in [(8192, 50304, 64), (4096, 4096, 4096)]:
        for dtype in (BF16, F32):
            dy = draw(rows, picks, dtype=dtype)
            index = torch.randint(0, columns, (rows, picks), device="cuda")
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
                    s, dtype=torch.float64, device="cuda"
                ).scatter_add_(1, i, dy.double()),
            )


def gpt2_shapes() -> list[tuple[int, ...]]:
    layer = [(768, 2304), (2304,), (768, 768), (768,), (768, 3072), (3072,), (3072, 768), (768,)]
    return [
        (50257, 768),
        (1024, 768),
        *([*layer, (768,), (768,), (768,), (768,)] * 12),
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
    fused = torch.optim.AdamW(twins, lr=1e-4, fused=True)
    yield Row(
        "AdamW",
        f"{total / 1e6:.0f}M parameters",
        F32,
        28 * total,
        lambda: adam_w_optimizer(1e-4, 3, weights, gradients, firsts, seconds),
        {"torch fused": fused.step},
    )
    yield Row(
        "InplaceClipGradNorm",
        f"{total / 1e6:.0f}M parameters",
        F32,
        12 * total,
        lambda: inplace_clip_grad_norm(gradients, max_norm=0.1),
        {"torch": lambda: torch.nn.utils.clip_grad_norm_(twins, 0.1)},
    )


FAMILIES = {
    "softmax": softmax_rows,
    "norm": norm_rows,
    "loss": loss_rows,
    "gather": gather_rows,
    "optimizer": optimizer_rows,
}


def milliseconds(call: Call) -> float:
    import triton.testing

    return float(triton.testing.do_bench(call, warmup=10, rep=60, return_mode="median"))


def error(found: Any, true: Any) -> float:
    pairs = zip(found, true, strict=False) if isinstance(true, list) else [(found, true)]
    return max(((a.double() - b.double()).norm() / b.double().norm()).item() for a, b in pairs)


def measured(row: Row, speed: float) -> dict[str, Any]:
    wrong = float("nan")
    if row.truth is not None:
        true = row.truth()
        wrong = error(row.ours(), true)
        allowed = 2 * max(error(peer(), true) for peer in row.peers.values()) + 1e-6
        if not wrong <= allowed:
            raise SystemExit(
                f"{row.name} {row.shape} {row.dtype}: error {wrong}, allowed {allowed}"
            )
        del true
    ours = milliseconds(row.ours)
    peers = {name: milliseconds(call) for name, call in row.peers.items()}
    best = min(peers, key=peers.__getitem__)
    return {
        "operator": row.name,
        "shape": row.shape,
        "type": str(row.dtype).removeprefix("torch."),
        "ms": round(ours, 4),
        "of copy": round(row.bytes / (ours * 1e-3) / speed, 3),
        "best peer": best,
        "peer ms": round(peers[best], 4),
        "times faster": round(peers[best] / ours, 2),
        "error": f"{wrong:.1e}",
    }


def copy_speed() -> float:
    """Bytes read and written a second by a large copy."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (milliseconds(lambda: target.copy_(source)) * 1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--only", choices=FAMILIES)
    args = parser.parse_args()
    torch.manual_seed(0)
    speed = copy_speed()
    print(f"copy: {speed / 1e12:.2f} TB/s")
    rows = []
    for name, family in FAMILIES.items():
        if args.only in (None, name):
            for row in family():
                rows.append(measured(row, speed))
                print(rows[-1], flush=True)
    print(table(rows))
    ratios = [math.log(row["times faster"]) for row in rows]
    print(f"geometric mean: {math.exp(sum(ratios) / len(ratios)):.2f} times the best peer's speed")
    if args.save:
        print("saved in", append("ops", [{"copy TB/s": round(speed / 1e12, 2), **r} for r in rows]))


if __name__ == "__main__":
    main()
