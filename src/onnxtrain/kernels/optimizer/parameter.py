"""Optimizers with one node per parameter: Adam and gradient descent.

Bound parameters are overwritten. A node that has no output for the new weights, or reads only the
step that would be added to them, leaves the weights alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.optimizer.lists import fused_adam_w, store, write
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
Six = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]


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
) -> Six:
    """m = alpha m + (1 - alpha) g; v = beta v + (1 - beta) g^2; w += delta (the new gradient)."""
    check_flag("do_bias_correction", do_bias_correction)
    check_flag("weight_decay_mode", weight_decay_mode)
    scalars = (r, t, loss_scale, global_gradient_norm, update_signal)
    given = (weights, gradients, moment_1, moment_2, mixed_precision_weights)
    form = (alpha, beta, epsilon, lambda_, max_norm_clip, do_bias_correction, weight_decay_mode)
    for way in (_in_one_pass, _in_blocks):
        if made := way(given, scalars, form, wanted, update):
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
) -> Six | None:
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


def _in_blocks(
    given: Sequence[Tensor | None],
    scalars: Sequence[Tensor | None],
    form: Sequence[float],
    wanted: tuple[bool, ...],
    update: bool,
) -> Six | None:
    """The same by torch's fused kernel on a CPU; None if it does not take these.

    The step, which that kernel does not tell, is computed only for those who want it.
    """
    old = [tensor for tensor in given if tensor is not None]
    rate, t, scale, norm, signal = scalars
    if rate is None or t is None or not blocks.alike(*old):
        return None
    if signal is not None and not signal.reshape(()):
        return None
    work, (alpha, beta, epsilon, decay, most, corrected, after) = old[0].dtype, form
    divisor = gradient_divisor(scale, norm, most, work)
    step = t if corrected else None
    c1, c2 = (bias_correction(b, step, torch.float64) for b in (alpha, beta))
    length, left = scalar(rate, torch.float64), 1 - scalar(rate, torch.float64) * decay
    # an infinite step makes every correction 1
    count = torch.full((), math.inf)
    if after:
        length = length * c2**0.5 / c1
    elif step is not None:
        count = torch.where(step > 0, scalar(step, torch.float32), count)
    writes = update and _writes(wanted, weights=3, delta=4)
    kept = [writes, wanted[4:5] != (True,), update, update, writes][: len(old)]
    new = [tensor if keep else tensor.clone() for tensor, keep in zip(old, kept, strict=True)]
    for w, g, m, v, *mixed in blocks.flat(*new):
        lists = [[w], [unscaled(g, divisor, work)], [m.to(work)], [v.to(work)]]
        before = None if kept[1] else w.clone()
        fused_adam_w(lists, length, count, (alpha, beta), 0.0 if after else decay, epsilon)
        if after and decay:
            w.mul_(left)
        if before is not None:
            made = lists[2][0], lists[3][0], (c1, c2), epsilon, decay
            g.copy_((_decoupled if after else _coupled)(scalar(rate, work), before, *made))
        store([m, v], [*lists[2], *lists[3]])
        write([w] * len(mixed), mixed)
    counted = t.add_(1) if update else t + 1
    return counted, new[2], new[3], new[0], new[1], new[4] if len(new) > 4 else None


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
