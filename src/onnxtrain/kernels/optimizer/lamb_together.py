"""What a step of LAMB is made of, and parameters of which Triton updates many together."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.lasting import keep
from onnxtrain.kernels.rehearsal import rehearsing

MOST_FORMS = 64


class Columns(NamedTuple):
    """Weights, gradients, both moments, 16-bit weights or None, of all parameters."""

    weights: Sequence[Tensor]
    gradients: Sequence[Tensor]
    firsts: Sequence[Tensor]
    seconds: Sequence[Tensor]
    mixed: Sequence[Tensor | None]


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


class Forms(NamedTuple):
    """The same of all parameters, each in a tuple."""

    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    decay: tuple[float, ...]
    epsilon: tuple[float, ...]
    max_norm: tuple[float, ...]


class Shared(NamedTuple):
    """What all parameters have in common; the step is None if nothing is corrected by it."""

    rate: Tensor
    step: Tensor | None
    loss_scale: Tensor | None
    gradient_norm: Tensor | None
    update: Tensor | None
    ratios: tuple[float, float]


Results = list[list[Tensor | None]]
"""New values of all parameters, in the order of ``Columns``."""
_known: collections.OrderedDict[tuple[Forms, torch.device], Tensor] = collections.OrderedDict()


def updated_together(
    columns: Columns, forms: Forms, shared: Shared, taken: Sequence[bool]
) -> tuple[Results, Sequence[int]]:
    """New values of the parameters that Triton takes, and the numbers of the others.

    Columns that nobody takes may have none.
    """
    count = len(columns.weights)
    results: Results = [[None] * count for _ in columns]
    if not all(t is None or t.is_cuda for t in shared[:5]):
        return results, range(count)
    given = _lists(columns)
    if given and fast.ready_lists(*given):
        made = _updated(given, forms, shared, taken)
        if made:
            return made, ()
    left = {*range(count)}
    for indices in _kinds(columns):
        some = Forms(*(tuple(numbers[i] for i in indices) for numbers in forms))
        chosen = Columns(*([column[i] for i in indices] for column in columns))  # type: ignore[arg-type]
        made = _updated(_lists(chosen), some, shared, taken)
        for column, values in zip(results, made, strict=False):
            for index, value in zip(indices, values, strict=True):
                column[index] = value
        if made:
            left -= {*indices}
    return results, sorted(left)


def _lists(columns: Columns) -> list[Sequence[Tensor]]:
    """All columns, 16-bit weights only if there are any; nothing if only some have such."""
    mixed = [t for t in columns.mixed if t is not None]
    if len(mixed) not in (0, len(columns.mixed)):
        return []
    return [*columns[:4], mixed] if mixed else [*columns[:4]]


def _kinds(columns: Columns) -> Sequence[list[int]]:
    """Numbers of the parameters that Triton may take, those of the same types together."""
    kinds: dict[tuple[torch.dtype | None, ...], list[int]] = {}
    for index, group in enumerate(zip(*columns, strict=True)):
        tensors = [t for t in group if t is not None]
        if tensors[0].numel() and fast.ready(*tensors, smallest=0):
            kinds.setdefault(tuple(None if t is None else t.dtype for t in group), []).append(index)
    return list(kinds.values())


def _updated(
    lists: list[Sequence[Tensor]], forms: Forms, shared: Shared, taken: Sequence[bool]
) -> Results:
    """The same for lists of one type each; [] if Triton does not take them.

    They are those of ``Columns``, the last one only if it has tensors.
    """
    weights, device = lists[0], lists[0][0].device
    sizes, *others = [tuple(map(Tensor.numel, items)) for items in lists]
    if weights[0].dtype is not torch.float32 or 0 in sizes or {*others} != {sizes}:
        return []
    many, flat = fast.load("many_lamb"), fast.load("common.flat").Flat.of(weights)
    part = fast.load("common.chunks").part_of(lists, sizes, flat.starts)
    fixed = _fixed(forms, device)
    if part is None or fixed is None:
        return []
    wholes = [torch.empty(flat.length, dtype=t[0].dtype, device=device) for t in lists]
    results = many.Results(*wholes, *[None] * (5 - len(wholes)))
    many.lamb(part, results, fixed, many.Scalars(*shared[:5]), shared.ratios, taken[1])
    return [
        flat.cut(whole) if whole is not None and needed else [None] * len(weights)
        for whole, needed in zip(results, taken, strict=True)
    ]


def _fixed(forms: Forms, device: torch.device) -> Tensor | None:
    """The numbers that no step changes, kept on the device; a row for each parameter.

    Alpha, 1 - alpha, beta, 1 - beta, decay, epsilon, logarithms of alpha and beta, most. None if
    kernels do not know what to make of them.
    """
    key = (forms, device)
    found = _known.get(key)
    if found is None:
        # while a step is recorded nothing comes from memory of the host
        recorded = torch.cuda.is_current_stream_capturing()
        if recorded or 0 in forms.max_norm or min(*forms.alpha, *forms.beta) < 0:
            return None
        rows = [
            (f.alpha, 1 - f.alpha, f.beta, 1 - f.beta, f.decay, f.epsilon, *_logarithms(f), f[4])
            for f in map(Form, *forms)
        ]
        found = torch.tensor(rows, dtype=torch.float64).to(device)
        if rehearsing():
            return found
        _known[key] = found
        while len(_known) > MOST_FORMS:
            _known.popitem(last=False)
    keep(found)
    return found


def _logarithms(form: Form) -> list[float]:
    return [math.log(beta) if beta > 0 else -math.inf for beta in (form.alpha, form.beta)]
