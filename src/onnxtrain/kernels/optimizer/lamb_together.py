"""What a step of LAMB is made of, and parameters of which Triton updates many together."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.lasting import keep
from onnxtrain.kernels.optimizer.scaling import bias_correction, gradient_divisor, scalar

MOST_FORMS = 64


class Group(NamedTuple):
    """One parameter: weights, gradient, both moments, 16-bit weights if it has them."""

    weights: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor
    mixed: Tensor | None


class Form(NamedTuple):
    """The numbers of one parameter."""

    alpha: float
    beta: float
    decay: float
    epsilon: float
    max_norm: float


class Shared(NamedTuple):
    """What all parameters have in common; the step is None if nothing is corrected by it."""

    rate: Tensor
    step: Tensor | None
    loss_scale: Tensor | None
    gradient_norm: Tensor | None
    update: Tensor | None
    ratios: tuple[float, float]


_known: collections.OrderedDict[tuple[tuple[Form, ...], torch.device], Tensor] = (
    collections.OrderedDict()
)


def updated_together(
    parameters: Sequence[Group], forms: Sequence[Form], shared: Shared
) -> dict[int, list[Tensor | None]]:
    """New values of the parameters that Triton takes, by their numbers."""
    found: dict[int, list[Tensor | None]] = {}
    if not all(t is None or t.is_cuda for t in shared[:5]) or not all(f.max_norm for f in forms):
        return found
    kinds: dict[tuple[torch.dtype | None, ...], list[int]] = {}
    for index, p in enumerate(parameters):
        if p.weights.numel() and fast.ready(*(t for t in p if t is not None), smallest=0):
            kinds.setdefault(tuple(None if t is None else t.dtype for t in p), []).append(index)
    for indices in kinds.values():
        made = _updated([parameters[i] for i in indices], [forms[i] for i in indices], shared)
        found |= dict(zip(indices, made, strict=False))
    return found


def _updated(
    parameters: list[Group], forms: list[Form], shared: Shared
) -> list[list[Tensor | None]]:
    """The same for parameters of the same types; nothing if Triton does not take them."""
    weights, gradients = [p.weights for p in parameters], [p.gradient for p in parameters]
    firsts, seconds = [p.first for p in parameters], [p.second for p in parameters]
    steps, new_firsts, new_seconds, results = (
        [torch.empty_like(t) for t in items] for items in (gradients, firsts, seconds, weights)
    )
    lists = [weights, gradients, firsts, seconds, steps, new_firsts, new_seconds, results]
    copies: list[Tensor] | list[None] = [None] * len(parameters)
    mixed = [p.mixed for p in parameters if p.mixed is not None]
    if mixed:
        copies = [torch.empty_like(t) for t in mixed]
        lists += [mixed, copies]
    many, device = fast.load("many_lamb"), weights[0].device
    # while a step is recorded nothing comes from memory of the host
    recorded = torch.cuda.is_current_stream_capturing()
    if not many.takes(lists) or (recorded and (tuple(forms), device) not in _known):
        return []
    numbers = lamb_numbers(forms, shared, device)
    rate = scalar(shared.rate, torch.float32)
    many.lamb(lists, numbers, rate, shared.ratios, shared.update)
    return [list(row) for row in zip(results, steps, new_firsts, new_seconds, copies, strict=True)]


def lamb_numbers(forms: Sequence[Form], shared: Shared, device: torch.device) -> Tensor:
    """A row for each parameter: alpha, 1 - alpha, beta, 1 - beta, decay, epsilon, c1, c2, S."""
    fixed = _fixed(tuple(forms), device)
    alpha, beta, most = fixed[:, 0], fixed[:, 2], fixed[:, 6]
    rows = torch.ones((len(forms), 9), dtype=torch.float64, device=device)
    rows[:, :6] = fixed[:, :6]
    if shared.step is not None:
        rows[:, 6] = bias_correction(alpha, shared.step, torch.float64)
        rows[:, 7] = bias_correction(beta, shared.step, torch.float64)
    divisor = gradient_divisor(shared.loss_scale, shared.gradient_norm, most, torch.float64)
    if divisor is not None:
        rows[:, 8] = divisor
    return rows.to(torch.float32)


def _fixed(forms: tuple[Form, ...], device: torch.device) -> Tensor:
    """The numbers that no step changes, kept on the device."""
    key = (forms, device)
    if key not in _known:
        numbers = [(f.alpha, 1 - f.alpha, f.beta, 1 - f.beta, *f[2:]) for f in forms]
        _known[key] = torch.tensor(numbers, dtype=torch.float64).to(device)
        while len(_known) > MOST_FORMS:
            _known.popitem(last=False)
    keep(_known[key])
    return _known[key]
