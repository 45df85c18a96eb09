"""Cross entropy by Triton, beside torch."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.fast import drawn, module, near, on_devices


@on_devices
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(device: str, dtype: str, reduction: str) -> None:
    quick = module("cross_entropy")
    sizes = {"mean": [(6, 100)], "sum": [(4, 603)], "none": [(1, 2)]}[reduction]
    if device == "cuda":
        sizes = [(6, 100), (4, 603), (1, 2), (9, 50304), (5, 50257), (3, 128257), (2000, 70)]
        sizes.append((1030, 41000))  # so many rows of one program are parts of clusters
    for rows, classes in sizes:
        scores = drawn(rows, classes, device=device, dtype=dtype) * 3
        labels = torch.arange(rows, device=device) * 7 % classes
        labels[rows // 2 + 1 :: 3] = -1
        weights = drawn(classes, device=device, dtype="float32").abs() if rows > 4 else None
        dy = torch.rand([rows] if reduction == "none" else [], device=device)
        to = quick.Labels(labels, weights, -1, reduction)

        passes = functools.partial(entropy, labels, weights, dy, reduction)
        true, plain = passes(torch.float64, scores), passes(torch.float32, scores)
        loss, log_prob = quick.loss(scores, to, scores.dtype)
        near(loss, plain[1].to(loss.dtype), true[1])
        near(log_prob, *(torch.log_softmax(t, 1) for t in (scores, scores.double())))
        gradient = quick.grad(dy, log_prob, to)
        near(gradient, *(of_log_prob(log_prob, to, dy, t) for t in (torch.float32, torch.float64)))
        for place in (None, scores, spaced(scores)):
            taken = scores.clone() if place is None else place
            found, loss = quick.loss_and_grad(taken, to, dy, torch.float32, place)
            assert place is None or found is place
            near(found, plain[0].to(scores.dtype), true[0])
            near(loss, plain[1], true[1])


def entropy(
    labels: Tensor,
    weights: Tensor | None,
    dy: Tensor,
    reduction: str,
    kind: torch.dtype,
    scores: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradient and loss by autograd."""
    x = scores.to(kind, copy=True).requires_grad_()
    scale = None if weights is None else weights.to(kind)
    loss = torch.nn.functional.cross_entropy(x, labels, scale, ignore_index=-1, reduction=reduction)
    return torch.autograd.grad(loss, x, dy.to(kind))[0], loss.detach()


def of_log_prob(log_prob: Tensor, to: Any, dy: Tensor, kind: torch.dtype) -> Tensor:
    """dy * w_i / norm * (e^log_prob - [c == label]), computed in a type."""
    labels = to.labels.clamp(0)
    weights = torch.ones_like(labels, dtype=kind)
    if to.weights is not None:
        weights = to.weights[labels].to(kind)
    weights = weights * (to.labels != to.ignore)
    share = dy.to(kind) * weights / (weights.sum() if to.reduction == "mean" else 1)
    hot = torch.nn.functional.one_hot(labels, log_prob.shape[1])
    found = (log_prob.to(kind).exp() - hot) * share[:, None]
    return found if kind is torch.float64 else found.to(log_prob.dtype)


def spaced(x: Tensor) -> Tensor:
    """The same matrix with space between its rows."""
    wide = x.new_empty(x.shape[0], x.shape[1] + 9)
    return wide[:, : x.shape[1]].copy_(x)


@on_devices
def test_cross_entropy_of_masked_scores_and_wrong_labels(device: str, dtype: str) -> None:
    quick = module("cross_entropy")
    scores = drawn(4, 900, device=device, dtype=dtype)
    scores[:, :500] = float("-inf")
    scores[3] = float("nan")
    labels = torch.tensor([600, -1, 900, -7], device=device)
    to = quick.Labels(labels, None, -7, "sum")
    loss, log_prob = quick.loss(scores, to, scores.dtype)
    assert bool(loss.isnan())
    near(
        log_prob[:3, 500:],
        *(torch.log_softmax(t, 1)[:3, 500:] for t in (scores, scores.double())),
    )
    assert bool((log_prob[:3, :500] == float("-inf")).all())
    one = torch.ones((), device=device)
    for gradient in (
        quick.loss_and_grad(scores, to, one, torch.float32)[0],
        quick.grad(one, log_prob, to),
    ):
        assert gradient.isfinite().all(1).tolist() == [True, False, False, True]
        assert bool((gradient[0, :500] == 0).all()) and bool((gradient[3] == 0).all())
    every = quick.Labels(torch.full_like(labels, -7), None, -7, "mean")
    gradient, loss = quick.loss_and_grad(scores, every, one, torch.float32)
    assert float(loss) == 0 and not gradient.any()
    weighted = quick.Labels(labels, torch.ones(900, device=device), -7, "none")
    for each in (
        quick.loss(scores, weighted, scores.dtype)[0],
        quick.loss_and_grad(scores, weighted, one.repeat(4), torch.float32)[1],
    ):
        assert each.isnan().tolist() == [False, True, True, False] and float(each[3]) == 0


@on_devices
def test_one_gradient_for_the_losses_of_all_rows(device: str, dtype: str) -> None:
    """A sum of losses gives each of them the same number, of which there is one in memory."""
    quick, scores = module("cross_entropy"), drawn(5, 70, device=device, dtype=dtype)
    to = quick.Labels(torch.arange(5, device=device), None, -1, "none")
    dy = torch.tensor([2.0, 9.0, 9.0, 9.0, 9.0], device=device)
    passes = [
        lambda dy: quick.loss_and_grad(scores, to, dy, torch.float32)[0],
        lambda dy: quick.grad(dy, scores.log_softmax(1), to),
    ]
    for gradient in passes:
        assert torch.equal(gradient(dy[:1].expand(5)), gradient(torch.full_like(dy, 2.0)))
