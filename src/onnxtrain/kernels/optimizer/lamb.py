"""LAMB: Adam whose step is scaled, per tensor, by the norms of weights and step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.optimizer.lamb_blocks import Rooms, takes, trust, updated_in_blocks
from onnxtrain.kernels.optimizer.lamb_together import (
    Columns,
    Form,
    Forms,
    Group,
    Shared,
    updated_together,
)
from onnxtrain.kernels.optimizer.scaling import (
    bias_correction,
    check_flag,
    chosen,
    gradient_divisor,
    scalar,
    unscaled,
)
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import MS

GROUP = 5
MOST_GROUPS = 1024


@kernel("LambOptimizer", domain=MS, outputs=0, needs=["wanted"])
def lamb_optimizer(
    update_signal: Tensor | None,
    loss_scale: Tensor | None,
    gradient_norm: Tensor | None,
    r: Tensor,
    step: Tensor | None = None,
    *groups: Tensor | None,
    alpha: Sequence[float] = (0.9,) * MOST_GROUPS,
    beta: Sequence[float] = (0.999,) * MOST_GROUPS,
    lambda_: Sequence[float] = (0.0,) * MOST_GROUPS,
    epsilon: Sequence[float] = (1e-6,) * MOST_GROUPS,
    max_norm_clip: Sequence[float] = (1.0,) * MOST_GROUPS,
    ratio_min: float = -math.inf,
    ratio_max: float = math.inf,
    do_bias_correction: int = 1,
    wanted: tuple[bool, ...],
) -> list[Tensor | None]:
    """d = lambda w + (m / c1) / (sqrt(v / c2) + epsilon); w -= r * |w| / |d| * d.

    Elements whose step or result is not finite keep their old values.
    """
    check_flag("do_bias_correction", do_bias_correction)
    columns = _columns(groups)
    count = len(columns[0])
    _check_lists(count, alpha, beta, lambda_, epsilon, max_norm_clip)
    lists = (alpha, beta, lambda_, epsilon, max_norm_clip[:count])
    forms, ratios = Forms(*map(tuple, lists)), (ratio_min, ratio_max)
    used = step if do_bias_correction else None
    shared = Shared(r, used, loss_scale, gradient_norm, update_signal, ratios)
    taken = [any(wanted[1 + place :: GROUP]) for place in range(GROUP)]
    made, left = updated_together(columns, forms, shared, taken)
    rooms: Rooms = {}
    for index in left:
        p = Group(*(column[index] for column in columns))  # type: ignore[arg-type]
        new = _updated(p, Form(*(numbers[index] for numbers in forms)), shared, rooms)
        for column, value in zip(made, new, strict=True):
            column[index] = value
    # after the launches that take long, so that a GPU has them the sooner
    next_step = None if step is None else chosen(update_signal, step + 1, step)
    return [next_step, *itertools.chain.from_iterable(zip(*made, strict=True))][: len(wanted)]


def _updated(p: Group, form: Form, shared: Shared, rooms: Rooms) -> list[Tensor | None]:
    """A parameter's new values, or its old ones if the signal is false."""
    if takes(p, shared):
        return updated_in_blocks(p, form, shared, rooms)
    work = p.weights.dtype
    divisor = gradient_divisor(shared.loss_scale, shared.gradient_norm, form.max_norm, work)
    d, first, second = _direction(p, unscaled(p.gradient, divisor, work), form, shared.step)
    squares = p.weights.square().sum(), d.to(work).square().sum()
    rate = trust(squares, scalar(shared.rate, work), *shared.ratios)
    made = _moved(p, d.to(work) * -rate, first, second)
    return [
        None if new is None or old is None else chosen(shared.update, new, old)
        for new, old in zip(made, p, strict=True)
    ]


def _direction(
    p: Group, g: Tensor, form: Form, step: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Adam's step in the gradient's type and the new moments; not finite: 0 and the old ones."""
    w, work = p.weights, g.dtype
    first = p.first.to(work) * form.alpha + g * (1 - form.alpha)
    second = p.second.to(work) * form.beta + g.square() * (1 - form.beta)
    c1, c2 = (bias_correction(beta, step, work) for beta in (form.alpha, form.beta))
    d = form.decay * w + (first / c1) / ((second / c2).sqrt() + form.epsilon)
    finite = d.isfinite()
    return (
        torch.where(finite, d, 0.0).to(p.gradient.dtype),
        torch.where(finite, first.to(p.first.dtype), p.first),
        torch.where(finite, second.to(p.second.dtype), p.second),
    )


def _moved(p: Group, delta: Tensor, first: Tensor, second: Tensor) -> list[Tensor | None]:
    """New weights, the step that was taken, moments and 16-bit weights."""
    new = p.weights + delta
    finite = new.isfinite()
    weights = torch.where(finite, new, p.weights)
    taken = torch.where(finite, delta, 0.0).to(p.gradient.dtype)
    mixed = None if p.mixed is None else weights.to(p.mixed.dtype)
    return [weights, taken, first, second, mixed]


def _columns(tensors: Sequence[Tensor | None]) -> Columns:
    """Five inputs make a parameter; only its 16-bit weights may be missing."""
    if len(tensors) % GROUP == GROUP - 1:
        tensors = [*tensors, None]  # a model's last input is not written if it is missing
    if not tensors or len(tensors) % GROUP:
        raise ValueError(f"parameters come in groups of {GROUP} inputs, there are {len(tensors)}")
    columns = [tensors[place::GROUP] for place in range(GROUP)]
    for column in columns[:-1]:
        if type(None) in set(map(type, column)):
            index = next(i for i, tensor in enumerate(column) if tensor is None)
            raise ValueError(f"group {index} lacks weights, gradient or a moment")
    return Columns(*columns)  # type: ignore[arg-type]


def _check_lists(count: int, *lists: Sequence[float]) -> None:
    """Refuse hyper-parameters that are not one for each group (more are allowed for the norms)."""
    *exact, norms = lists
    for name, values in zip(("alpha", "beta", "lambda", "epsilon"), exact, strict=True):
        if len(values) != count:
            raise ValueError(f"{name} has {len(values)} values for {count} parameters")
    if len(norms) < count:
        raise ValueError(f"max_norm_clip has {len(norms)} values for {count} parameters")
