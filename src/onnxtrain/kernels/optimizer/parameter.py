"""Optimizers with one node per parameter: Adam and gradient descent.

Bound parameters are overwritten. A node that has no output for the new weights, or reads only the
step that would be added to them, leaves the weights alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.optimizer.scaling import (
    bias_correction,
    check_flag,
    chosen,
    gradient_divisor,
    scalar,
    unscaled,
)
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS, DataType

WIDE = frozenset({DataType.FLOAT, DataType.DOUBLE})


@kernel(
    "AdamOptimizer",
    domain=MS,
    outputs=6,
    needs=["wanted"],
    updates=["t", "weights", "moment_1", "moment_2", "mixed_precision_weights"],
    view={"t": 0, "moment_1": 1, "moment_2": 2, "weights": 3, "mixed_precision_weights": 5},
    T3=WIDE,
    T4=FLOATS,
    T_GRAD=FLOATS,
)
def adam_optimizer(
    r: Tensor,
    t: Tensor,
    weights: Tensor,
    gradients: Tensor,
    moment_1: Tensor,
    moment_2: Tensor,
    mixed_precision_weights: Tensor | None = None,
    loss_scale: Tensor | None = None,
    global_gradient_norm: Tensor | None = None,
    update_signal: Tensor | None = None,
    *,
    alpha: float = 0.9,
    beta: float = 0.999,
    lambda_: float = 0.0,
    epsilon: float = 1e-8,
    max_norm_clip: float = 1.0,
    do_bias_correction: int = 1,
    weight_decay_mode: int = 0,
    wanted: tuple[bool, ...],
    update: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """m = alpha m + (1 - alpha) g; v = beta v + (1 - beta) g^2; w += delta (the new gradient)."""
    check_flag("do_bias_correction", do_bias_correction)
    check_flag("weight_decay_mode", weight_decay_mode)
    scalars = (r, t, loss_scale, global_gradient_norm, update_signal)
    given = (weights, gradients, moment_1, moment_2, mixed_precision_weights)
    form = (alpha, beta, epsilon, lambda_, max_norm_clip, do_bias_correction, weight_decay_mode)
    if made := _in_one_pass(given, scalars, form, wanted, update):
        return made
    work = weights.dtype
    divisor = gradient_divisor(loss_scale, global_gradient_norm, max_norm_clip, work)
    g = unscaled(gradients, divisor, work)
    first = moment_1.to(work) * alpha + g * (1 - alpha)
    second = moment_2.to(work) * beta + g.square() * (1 - beta)
    step = t if do_bias_correction else None
    rates = bias_correction(alpha, step, work), bias_correction(beta, step, work)
    delta = (_decoupled if weight_decay_mode else _coupled)(
        scalar(r, work), weights, first, second, rates, epsilon, lambda_
    )
    new = [
        (t, t + 1),
        (moment_1, first.to(moment_1.dtype)),
        (moment_2, second.to(moment_2.dtype)),
        (weights, weights + delta),
        (gradients, delta.to(gradients.dtype)),
    ]
    count, m1, m2, updated, step_taken = (chosen(update_signal, n, o) for o, n in new)
    old = mixed_precision_weights
    mixed = None if old is None else chosen(update_signal, updated.to(old.dtype), old)
    if update:
        count, m1, m2 = t.copy_(count), moment_1.copy_(m1), moment_2.copy_(m2)
        if _writes(wanted, weights=3, delta=4):
            updated = weights.copy_(updated)
            mixed = None if old is None or mixed is None else old.copy_(mixed)
    return count, m1, m2, updated, step_taken, mixed


def _in_one_pass(
    given: Sequence[Tensor | None],
    scalars: Sequence[Tensor | None],
    form: Sequence[float],
    wanted: tuple[bool, ...],
    update: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None] | None:
    """All results of a node by one Triton kernel; None if it does not take these."""
    tensors = [tensor for tensor in given if tensor is not None]
    if form[4] == 0 or not fast.ready(*tensors, smallest=1):
        return None
    quick = fast.load("adam")
    old, numbers = quick.Lists(*given), quick.Scalars(*scalars)
    if not quick.takes(old, numbers):
        return None
    writes = update and _writes(wanted, weights=3, delta=4)
    step = wanted[4:5] == (True,)
    results = quick.Lists(
        old.weights if writes else torch.empty_like(old.weights),
        torch.empty_like(old.gradient) if step else None,
        old.first if update else torch.empty_like(old.first),
        old.second if update else torch.empty_like(old.second),
        old.mixed if writes or old.mixed is None else torch.empty_like(old.mixed),
    )
    quick.adam(results, old, numbers, quick.Form(*form[:5], bool(form[5]), bool(form[6])))
    count = chosen(numbers.signal, numbers.step + 1, numbers.step)
    if update:
        count = numbers.step.copy_(count)
    taken = results.gradient if step else old.gradient
    return count, results.first, results.second, results.weights, taken, results.mixed


def _coupled(
    rate: Tensor,
    w: Tensor,
    m: Tensor,
    v: Tensor,
    corrections: tuple[Tensor | float, Tensor | float],
    epsilon: float,
    decay: float,
) -> Tensor:
    """-rate * ((m / c1) / (sqrt(v / c2) + epsilon) + decay * w)."""
    c1, c2 = corrections
    return -rate * ((m / c1) / ((v / c2).sqrt() + epsilon) + decay * w)


def _decoupled(
    rate: Tensor,
    w: Tensor,
    m: Tensor,
    v: Tensor,
    corrections: tuple[Tensor | float, Tensor | float],
    epsilon: float,
    decay: float,
) -> Tensor:
    """-u - rate * decay * (w - u), with u = rate * sqrt(c2) / c1 * m / (sqrt(v) + epsilon)."""
    c1, c2 = corrections
    u = rate * c2**0.5 / c1 * m / (v.sqrt() + epsilon)
    return -u - rate * decay * (w - u)


@kernel(
    "SGDOptimizer",
    domain=MS,
    outputs=2,
    needs=["wanted"],
    updates=["w"],
    view={"w": 0},
    T=FLOATS,
)
def sgd_optimizer(
    eta: Tensor, w: Tensor, g: Tensor, *, wanted: tuple[bool, ...], update: bool = False
) -> tuple[Tensor, Tensor]:
    """delta = -eta * g; the new weights are w + delta and the new gradient is delta."""
    if w.shape != g.shape:
        raise ValueError(f"W has shape {tuple(w.shape)} and G {tuple(g.shape)}, must be the same")
    work = torch.promote_types(w.dtype, torch.float32)
    delta = -scalar(eta, work) * g.to(work)
    new = (w.to(work) + delta).to(w.dtype)
    if update and _writes(wanted, weights=0, delta=1):
        new = w.copy_(new)
    return new, delta.to(g.dtype)


def _writes(wanted: tuple[bool, ...], *, weights: int, delta: int) -> bool:
    """Whether a node updates its weights: not if it has no output for them or reads delta alone."""
    delta_alone = wanted[delta : delta + 1] == (True,) and not wanted[weights]
    return len(wanted) > weights and not delta_alone
