"""The activation functions that recurrent layers may name, with their parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Callable[[Tensor], Tensor]
Function = Callable[[Tensor, float, float], Tensor]

# name: function, default alpha and beta (None: the function does not take it)
TABLE: dict[str, tuple[Function, float | None, float | None]] = {
    "relu": (lambda x, a, b: x.relu(), None, None),
    "tanh": (lambda x, a, b: x.tanh(), None, None),
    "sigmoid": (lambda x, a, b: x.sigmoid(), None, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: F.leaky_relu(x, a), 0.01, None),
    "thresholdedrelu": (lambda x, a, b: torch.where(x >= a, x, 0.0), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * (b * x).tanh(), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: (a * x + b).clamp(0.0, 1.0), 0.2, 0.5),
    "elu": (lambda x, a, b: F.elu(x, a), 1.0, None),
    "softsign": (lambda x, a, b: F.softsign(x), None, None),
    "softplus": (lambda x, a, b: F.softplus(x), None, None),
}


def functions(
    names: Sequence[str] | None,
    default: Sequence[str],
    directions: int,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
) -> list[list[Activation]]:
    """The functions of each direction; parameters go to the functions that take them, in order."""
    names = list(names or list(default) * directions)
    count = len(default)
    if len(names) < count * directions:
        raise ValueError(f"{count * directions} activations are needed, not {names}")
    first, second = iter(alphas or ()), iter(betas or ())
    made: list[Activation] = []
    for name in names:
        if name.lower() not in TABLE:
            raise ValueError(f"unknown activation '{name}', must be one of {', '.join(TABLE)}")
        function, alpha, beta = TABLE[name.lower()]
        a = 0.0 if alpha is None else next(first, alpha)
        b = 0.0 if beta is None else next(second, beta)
        made.append(functools.partial(_apply, function, a, b))
    return [made[d * count : (d + 1) * count] for d in range(directions)]


def _apply(function: Function, alpha: float, beta: float, x: Tensor) -> Tensor:
    return function(x, alpha, beta)


def clipped(clip: float | None) -> Activation:
    """Bounds what goes into an activation, if there is a bound."""
    if clip is None or clip <= 0:
        return lambda x: x
    return lambda x: x.clamp(-clip, clip)
