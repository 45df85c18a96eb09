"""Optimizers over whole lists of tensors; a few launches serve all of them.

Weights, moments and gradients are overwritten in place. Lists of different element types are
computed in the widest of them. Rate and step are numbers, or tensors of one element; those on a
GPU stay there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.optimizer import device
from onnxtrain.kernels.optimizer.lists import (
    Tensors,
    cast,
    check,
    common,
    filled,
    fused_adam_w,
    store,
    times,
    together,
    write,
)
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.reduction.norm import l2_of
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import shape_of, single
from onnxtrain.types import MS, OWN


@kernel(
    "AdamWOptimizer",
    domain=MS,
    outputs=4,
    mutates=["weights", "momentums_1", "momentums_2", "copies"],
    view={"update_signal": 0, "weights": 1, "momentums_1": 2, "momentums_2": 3},
)
def adam_w_optimizer(
    lr: Any,
    step: Any,
    weights: Tensors,
    gradients: Tensors,
    momentums_1: Tensors,
    momentums_2: Tensors,
    update_signal: Any = None,
    copies: Tensors | None = None,
    factor: Tensor | None = None,
    *,
    adam_mode: int = 0,
    alpha: float = 0.9,
    beta: float = 0.999,
    correct_bias: int = 1,
    epsilon: float = 1e-8,
    weight_decay: float = 1e-2,
) -> tuple[Tensor, Tensors, Tensors, Tensors]:
    """m = alpha m + (1 - alpha) g; v = beta v + (1 - beta) g^2; c1, c2 = 1 - alpha^t, 1 - beta^t.

    Mode 0: w -= lr * weight_decay * w, then w -= lr * m / (c1 * (sqrt(v) / sqrt(c2) + epsilon)).
    Mode 1: w -= lr * sqrt(c2) / c1 * m / (sqrt(v) + epsilon), then w -= lr * weight_decay * w.
    The reference knows nothing of copies, which receive the new weights in types of their own, and
    of a factor of all gradients.
    """
    _check_modes(adam_mode, correct_bias)
    moments = {"first_momentum": momentums_1, "second_momentum": momentums_2}
    check(weights, gradient=gradients, **moments, copy=copies)
    waits = device.unread(lr) and device.unread(update_signal)
    updates = waits or update_signal is None or _is_true(update_signal)
    if updates:
        form = device.AdamW(
            (alpha, beta), epsilon, weight_decay, bool(adam_mode), bool(correct_bias)
        )
        lists = [weights, gradients, momentums_1, momentums_2]
        skipped = device.skip(update_signal) if waits else None
        if device.unread(lr):
            device.adam_w(lists, lr, step, form, skipped, copies, factor)
        else:
            lists[1] = times(gradients, factor)
            _adam_w(lists, _number(lr), _number(step), form)
            write(weights, copies)
    flag = update_signal.reshape(_shape(step)) if waits else _flag(step, updates, weights)
    return flag, weights, momentums_1, momentums_2


@kernel(
    "SGDOptimizerV2",
    domain=MS,
    outputs=2,
    mutates=["weights"],
    view={"update_signal": 0, "weights": 1},
)
def sgd_optimizer_v2(
    lr: Any,
    weights: Tensors,
    gradients: Tensors,
    update_signal: Any = None,
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensors]:
    """w -= lr * g for every weight, or lr * factor * g, of which the reference knows nothing."""
    check(weights, gradient=gradients)
    waits = device.unread(lr) and device.unread(update_signal)
    updates = waits or update_signal is None or _is_true(update_signal)
    if updates and device.unread(lr):
        skipped = device.skip(update_signal) if waits else None
        device.descend(weights, gradients, lr, skipped, factor)
    elif updates:
        gradients = times(gradients, factor)
        work = common([weights, gradients])
        wide = cast(weights, work)
        torch._foreach_add_(wide, cast(gradients, work), alpha=-_number(lr))
        store(weights, wide)
    flag = update_signal.reshape(_shape(lr)) if waits else _flag(lr, updates, weights)
    return flag, weights


@kernel("InplaceClipGradNorm", domain=MS, mutates=["gradients"], view="gradients")
def inplace_clip_grad_norm(
    gradients: Tensors, *, max_norm: float = 1.0, norm_type: str = "fro"
) -> Tensors:
    """g *= min(max_norm / (n + 1e-6), 1), with n the norm of all gradients together."""
    if norm_type != "fro":
        raise ValueError(f"norm type '{norm_type}' is not supported, must be 'fro'")
    if not gradients:
        return gradients
    if together(gradients, smallest=0) and fast.load("many").clip(gradients, max_norm):
        return gradients
    factor = _clip_factor(gradients, max_norm)
    torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))
    return gradients


@kernel("ClipFactor", domain=OWN)
def clip_factor(gradients: Tensors, *, max_norm: float = 1.0) -> Tensor:
    """min(max_norm / (n + 1e-6), 1), with n the norm of all gradients together; at least float32.

    Gradients times this factor are what InplaceClipGradNorm makes of them.
    """
    if gradients and together(gradients, smallest=0):
        factor: Tensor | None = fast.load("many").factor(gradients, max_norm)
        if factor is not None:
            return factor
    return _clip_factor(gradients, max_norm)


def _clip_factor(gradients: Tensors, max_norm: float) -> Tensor:
    if not gradients:
        return torch.ones(())
    norm = l2_of(gradients, acc(common([gradients])))
    # fmin: a norm that is not a number leaves the gradients as they are
    return torch.fmin(max_norm / (norm + 1e-6), torch.ones_like(norm))


def _adam_w(lists: Sequence[Tensors], rate: float, step: float, form: device.AdamW) -> None:
    """One step with numbers that the host knows."""
    # an infinite step makes every correction 1
    count = step if form.corrected else math.inf
    if not form.after:
        _adam(lists, rate, count, form.betas, form.decay, form.epsilon)
        return
    root = math.sqrt(1 - form.betas[1] ** count)
    _adam(lists, rate, count, form.betas, 0.0, form.epsilon / root if root else math.inf)
    if form.decay:
        torch._foreach_mul_(lists[0], 1 - rate * form.decay)


def _adam(
    lists: Sequence[Tensors],
    rate: float,
    step: float,
    betas: tuple[float, float],
    decay: float,
    epsilon: float,
) -> None:
    """AdamW over [weights, gradients, first moments, second moments], epsilon scaled by √c2."""
    corrections = (1 - betas[0] ** step, math.sqrt(1 - betas[1] ** step))
    if together(*lists) and fast.load("many").adam_w(
        lists, rate, decay, betas, corrections, epsilon
    ):
        return
    lists = filled(lists)
    if not lists[0]:
        return
    count = torch.full((), step, dtype=torch.float32, device=lists[0][0].device)
    fused_adam_w(lists, rate, count, betas, decay, epsilon)


def _number(value: Any) -> float:
    """A rate or a step as the host computes with it."""
    return float(value) if isinstance(value, Tensor) else float(single(value))


def _is_true(signal: Any) -> bool:
    return bool(signal) if isinstance(signal, Tensor) else bool(single(signal))


def _flag(like: Any, updates: bool, weights: Tensors) -> Tensor:
    return torch.full(_shape(like), updates, device=weights[0].device)


def _shape(value: Any) -> Sequence[int]:
    return value.shape if isinstance(value, Tensor) else shape_of(value)


def _check_modes(adam_mode: int, correct_bias: int) -> None:
    if adam_mode not in (0, 1):
        raise ValueError(f"the value of adam_mode is invalid: {adam_mode}, must be 0 or 1")
    if correct_bias not in (0, 1):
        raise ValueError(f"the value of correct_bias is invalid: {correct_bias}, must be 0 or 1")
    if adam_mode == 0 and correct_bias != 1:
        raise ValueError("the correct_bias should be 1 for adam_mode = 0")
