"""The function that a fused operator applies to its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.precision import store, widen

Function = Callable[..., Tensor]

FUNCTIONS: dict[str, tuple[Function, tuple[float, ...]]] = {
    "Clip": (torch.clamp, (-torch.inf, torch.inf)),
    "Elu": (functional.elu, (1.0,)),
    "HardSigmoid": (lambda x, alpha, beta: (alpha * x + beta).clamp(0, 1), (0.2, 0.5)),
    "LeakyRelu": (functional.leaky_relu, (0.01,)),
    "Relu": (torch.relu, ()),
    "Sigmoid": (torch.sigmoid, ()),
    "Softplus": (functional.softplus, ()),
    "Softsign": (functional.softsign, ()),
    "Tanh": (torch.tanh, ()),
    "ThresholdedRelu": (lambda x, alpha: torch.where(x > alpha, x, 0), (1.0,)),
}
"""Functions by ONNX's name, and the defaults of their parameters."""


def activated(y: Tensor, name: str | None, given: Sequence[float | None] = ()) -> Tensor:
    """f(y) for the function that an attribute names, y itself without one."""
    if not name:
        return y
    if name not in FUNCTIONS:
        raise ValueError(f"activation is '{name}', but it must be one of {', '.join(FUNCTIONS)}")
    function, defaults = FUNCTIONS[name]
    given = [*given, *[None] * len(defaults)]
    numbers = [d if g is None else g for d, g in zip(defaults, given, strict=False)]
    return store(function(widen(y), *numbers), y)
