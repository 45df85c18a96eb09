"""Rows of updates of many tensors: float32 weights with 16-bit gradients and copies.

The first call of each way starts from the same state, so that its result can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.fast import load
from onnxtrain.kernels.math.finite import is_all_finite
from onnxtrain.kernels.optimizer.device import descend
from onnxtrain.kernels.optimizer.parameter import adam_optimizer
from onnxtrain.kernels.optimizer.sequence import adam_w_optimizer
from onnxtrain.kernels.reduction.norm import all_l2
from op_row import BF16, F32, Row, draw, fitted
from op_rows import gpt2_shapes

RATE = 1e-2
Shapes = Sequence[tuple[int, ...]]
FEW: Shapes = [(256, 256), (256,)] * 8


def list_rows(lists: Sequence[Shapes] = ()) -> Iterator[Row]:
    """All weights of a model at once: a large one, and one that is bound by launching."""
    for shapes in lists or (gpt2_shapes(), FEW):
        yield _sgd(shapes)
        yield _adam(shapes)
        yield from _sums(shapes)


def one_rows(shape: tuple[int, ...] = (50257, 768)) -> Iterator[Row]:
    """Adam of one weight, as a node of its own."""
    yield _adam_of_one(fitted(*shape))


class _State:
    """Weights of both ways, 16-bit gradients that both read, and the truth after one step."""

    def __init__(self, shapes: Shapes) -> None:
        self.weights = [0.02 * draw(*shape) for shape in shapes]
        self.gradients = [1e-3 * draw(*shape) for shape in shapes]
        self.gradients = [g.to(BF16) for g in self.gradients]
        self.copies, self.other_copies = ([w.to(BF16) for w in self.weights] for _ in range(2))
        self.rate = torch.tensor([RATE], device=self.weights[0].device)
        self.step = torch.tensor([1], device=self.rate.device)
        self.elements = sum(w.numel() for w in self.weights)
        self.twins = [w.clone().requires_grad_() for w in self.weights]
        for twin, gradient in zip(self.twins, self.gradients, strict=True):
            twin.grad = gradient.float()

    def zeros(self) -> list[Tensor]:
        return [torch.zeros_like(w) for w in self.weights]

    def torchs(self, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        """One step of torch's, with gradients made wide before and copies made behind it."""
        torch._foreach_copy_([twin.grad for twin in self.twins], self.gradients)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.other_copies, self.twins)
        return [twin.detach() for twin in self.twins]

    def row(self, name: str, moved: int, ours, optimizer, truth) -> Row:
        return Row(
            name,
            f"{self.elements / 1e6:.3g}M parameters",
            BF16,
            moved * self.elements,
            ours,
            {"torch fused": lambda: self.torchs(optimizer)},
            truth,
        )

    def adam_truth(self) -> list[Tensor]:
        """The first step of Adam is g / (|g| + epsilon) times the rate."""
        pairs = zip(self.weights, self.gradients, strict=True)
        return [w.double() - RATE * g.double() / (g.double().abs() + 1e-8) for w, g in pairs]


def _sgd(shapes: Shapes) -> Row:
    state = _State(shapes)

    def ours() -> list[Tensor]:
        lists = (state.weights, state.gradients)
        if state.rate.is_cuda:
            load("many").sgd(*lists, lr=state.rate, copies=state.copies)
        else:
            descend(*lists, state.rate)
            torch._foreach_copy_(state.copies, state.weights)
        return state.weights

    def truth() -> list[Tensor]:
        pairs = zip(state.weights, state.gradients, strict=True)
        return [w.double() - RATE * g.double() for w, g in pairs]

    fused = torch.optim.SGD(state.twins, lr=RATE, fused=True)
    return state.row("SGD bf16 gradients and copies", 12, ours, fused, truth)


def _adam(shapes: Shapes) -> Row:
    state = _State(shapes)
    lists = (state.weights, state.gradients, state.zeros(), state.zeros(), None, state.copies)

    def ours() -> list[Tensor]:
        adam_w_optimizer(state.rate, state.step, *lists, weight_decay=0.0)
        return state.weights

    fused = torch.optim.Adam(state.twins, lr=RATE, fused=True, capturable=state.rate.is_cuda)
    return state.row("Adam bf16 gradients and copies", 28, ours, fused, state.adam_truth)


def _adam_of_one(shape: tuple[int, ...]) -> Row:
    state = _State([shape])
    lists = (state.weights, state.gradients, state.zeros(), state.zeros(), state.copies)
    tensors = [items[0] for items in lists]
    # the gradient's place does not take the step that was made
    wanted = (True, True, True, True, False, True)

    def ours() -> list[Tensor]:
        adam_optimizer(state.rate, state.step, *tensors, wanted=wanted, update=True)
        return state.weights

    fused = torch.optim.Adam(state.twins, lr=RATE, fused=True, capturable=state.rate.is_cuda)
    return state.row("AdamOptimizer", 28, ours, fused, state.adam_truth)


def _sums(shapes: Shapes) -> Iterator[Row]:
    """What looks at all gradients, in float32."""
    gradients = [draw(*shape) for shape in shapes]
    total = sum(g.numel() for g in gradients)
    shape = f"{total / 1e6:.3g}M parameters"
    yield Row(
        "IsAllFinite",
        shape,
        F32,
        4 * total,
        lambda: is_all_finite(*gradients),
        {"torch": lambda: torch.stack([g.isfinite().all() for g in gradients]).all()},
        lambda: torch.ones((), dtype=torch.bool, device=gradients[0].device),
    )
    yield Row(
        "ReduceAllL2",
        shape,
        F32,
        4 * total,
        lambda: all_l2(*gradients),
        {"torch": lambda: torch.stack(torch._foreach_norm(gradients)).norm()},
        lambda: torch.stack([g.double().norm() for g in gradients]).norm(),
    )
