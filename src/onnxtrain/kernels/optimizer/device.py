"""AdamW and gradient descent whose rate and step lie on the device, where the host cannot see them.

No step waits for the device then, and one that was recorded follows the schedule when it is
replayed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.optimizer.lists import (
    Tensors,
    cast,
    common,
    filled,
    fused_adam_w,
    store,
    times,
    together,
    write,
)
from onnxtrain.kernels.optimizer.scaling import scalar


@dataclasses.dataclass(frozen=True)
class AdamW:
    """The attributes of AdamW: ``after`` decays updated weights, and epsilon is never scaled."""

    betas: tuple[float, float]
    epsilon: float
    decay: float
    after: bool
    corrected: bool


def unread(number: Any) -> bool:
    """Whether a number is on a GPU and the host had to wait for it."""
    return isinstance(number, Tensor) and number.is_cuda


def skip(signal: Tensor) -> Tensor:
    """1 where a signal says that nothing is to be updated, 0 where it does not."""
    return scalar(signal.logical_not(), torch.float32)


def adam_w(
    lists: Sequence[Tensors],
    rate: Tensor,
    step: Tensor,
    form: AdamW,
    skipped: Tensor | None = None,
    copies: Tensors | None = None,
    factor: Tensor | None = None,
) -> None:
    """One step over [weights, gradients, first moments, second moments], in place.

    Nothing changes if ``skipped`` is 1. Copies receive the new weights. Gradients count times the
    factor.
    """
    given = [*lists, *([] if copies is None else [copies])]
    if together(*given, smallest=0):
        decays = (0.0, form.decay) if form.after else (form.decay, 0.0)
        many = fast.load("many")
        numbers = many.adam_numbers(
            rate, step, form.betas, form.epsilon, form.after, form.corrected
        )
        if many.adam_w_by(given, numbers, form.betas, decays, factor, skipped):
            return
    given = filled(given)
    if not given[0]:
        return
    given[1] = times(given[1], factor)
    exact = any(weight.dtype is torch.float64 for weight in given[0])
    (_exact if exact else _portable)(given[:4], rate, step, form, skipped)
    write(given[0], given[4] if copies else None)


def _exact(
    lists: Sequence[Tensors], rate: Tensor, step: Tensor, form: AdamW, skipped: Tensor | None
) -> None:
    """The step in float64, one tensor after the other: torch's kernels take float32 numbers."""
    length, count = scalar(rate, torch.float64), scalar(step, torch.float64)
    first = root = torch.ones_like(length)
    if form.corrected:
        first, second = (1 - torch.pow(beta, count) for beta in form.betas)
        root = second.sqrt()
    (alpha, beta), left = form.betas, 1 - length * form.decay
    for weight, gradient, m, v in zip(*lists, strict=True):
        g = gradient.to(torch.float64)
        new_m, new_v = alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g * g
        if form.after:
            new = (weight - length * root / first * new_m / (new_v.sqrt() + form.epsilon)) * left
        else:
            new = weight * left - length * new_m / (first * (new_v.sqrt() / root + form.epsilon))
        for old, value in ((weight, new), (m, new_m), (v, new_v)):
            old.copy_(value if skipped is None else torch.where(skipped == 1, old, value))


def _portable(
    lists: Sequence[Tensors], rate: Tensor, step: Tensor, form: AdamW, skipped: Tensor | None
) -> None:
    """The step by torch's own kernels."""
    if not form.after:
        count = scalar(step, torch.float32)
        length = scalar(rate, torch.float32)
        fused_adam_w(lists, length, count, form.betas, form.decay, form.epsilon, skipped)
        return
    length = _length(scalar(rate, torch.float64), step, form)
    # an infinite step makes every correction 1: those are in the length already
    count = torch.full_like(length, math.inf)
    fused_adam_w(lists, length, count, form.betas, 0.0, form.epsilon, skipped)
    if form.decay:
        left = 1 - scalar(rate, torch.float64) * form.decay
        if skipped is not None:
            left = torch.where(skipped == 1, 1.0, left)
        torch._foreach_mul_(lists[0], left.to(lists[0][0].dtype))


def _length(rate: Tensor, step: Tensor, form: AdamW) -> Tensor:
    """rate * sqrt(1 - beta^t) / (1 - alpha^t) in float32, or the rate if nothing is corrected."""
    if form.corrected:
        first, second = (1 - torch.pow(beta, scalar(step, torch.float64)) for beta in form.betas)
        rate = rate * second.sqrt() / first
    return rate.to(torch.float32)


def descend(
    weights: Tensors,
    gradients: Tensors,
    rate: Tensor,
    skipped: Tensor | None = None,
    factor: Tensor | None = None,
) -> None:
    """w -= rate * factor * g for every weight, unless ``skipped`` is 1."""
    if together(weights, gradients, smallest=0) and fast.load("many").sgd(
        weights, gradients, lr=rate, factor=factor, skip=skipped
    ):
        return
    weights, gradients = filled([weights, gradients])
    if not weights:
        return
    gradients = times(gradients, factor)
    work = common([weights, gradients])
    wide = cast(weights, work)
    torch._fused_sgd_(  # type: ignore[call-overload]
        wide,
        cast(gradients, work),
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=scalar(rate, torch.float32),
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
        found_inf=skipped,
    )
    store(weights, wide)
