"""ONNX's own optimizers: Adagrad, Adam and Momentum over any number of tensors.

Inputs and outputs are grouped by what they are: all tensors first, then all gradients, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.optimizer.scaling import bias_correction, scalar
from onnxtrain.kernels.precision import acc, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import TRAINING


@kernel("Adagrad", domain=TRAINING, outputs=0)
def adagrad(
    r: Tensor,
    t: Tensor,
    *inputs: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> list[Tensor]:
    """h += g^2; x -= r / (1 + t * decay_factor) * g / (sqrt(h) + epsilon)."""
    made = []
    for x, gradient, squares in _tuples(inputs, 3):
        work = acc(x.dtype)
        g = widen(gradient) + norm_coefficient * widen(x)
        h = widen(squares) + g.square()
        rate = scalar(r, work) / (1 + scalar(t, work) * decay_factor)
        made.append((_like(x, widen(x) - rate * g / (h.sqrt() + epsilon)), _like(squares, h)))
    return _by_kind(made)


@kernel("Adam", domain=TRAINING, outputs=0)
def adam(
    r: Tensor,
    t: Tensor,
    *inputs: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> list[Tensor]:
    """v = alpha v + (1 - alpha) g; h = beta h + (1 - beta) g^2; x -= rate * v / (sqrt h + epsilon).

    rate = r * sqrt(1 - beta^t) / (1 - alpha^t) from t = 1 on, and r before.
    """
    made = []
    for x, gradient, mean, squares in _tuples(inputs, 4):
        work = acc(x.dtype)
        g = widen(gradient) + norm_coefficient * widen(x)
        v = widen(mean) * alpha + g * (1 - alpha)
        h = widen(squares) * beta + g.square() * (1 - beta)
        c1, c2 = bias_correction(alpha, t, work), bias_correction(beta, t, work)
        rate = scalar(r, work) * c2**0.5 / c1
        new = (widen(x) - rate * v / (h.sqrt() + epsilon)) * (1 - norm_coefficient_post)
        made.append((_like(x, new), _like(mean, v), _like(squares, h)))
    return _by_kind(made)


@kernel("Momentum", domain=TRAINING, outputs=0)
def momentum(
    r: Tensor,
    t: Tensor,
    *inputs: Tensor,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> list[Tensor]:
    """v = alpha v + beta g (beta is 1 at t = 0); x -= r * v, or r * (g + alpha v) for nesterov."""
    if mode not in ("nesterov", "standard"):
        raise ValueError(f"mode is '{mode}', must be 'nesterov' or 'standard'")
    made = []
    for x, gradient, velocity in _tuples(inputs, 3):
        work = acc(x.dtype)
        g = widen(gradient) + norm_coefficient * widen(x)
        weight = torch.where(scalar(t, work) > 0, beta, 1.0).to(work)
        v = widen(velocity) * alpha + weight * g
        step = g + alpha * v if mode == "nesterov" else v
        made.append((_like(x, widen(x) - scalar(r, work) * step), _like(velocity, v)))
    return _by_kind(made)


def _tuples(inputs: Sequence[Tensor], kinds: int) -> Iterator[tuple[Tensor, ...]]:
    """One tuple for each optimized tensor."""
    if not inputs or len(inputs) % kinds:
        raise ValueError(f"{len(inputs)} tensors cannot be split into {kinds} kinds")
    count = len(inputs) // kinds
    return zip(*(inputs[k * count : (k + 1) * count] for k in range(kinds)), strict=True)


def _by_kind(made: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """All results of the first kind, then all of the second, and so on."""
    return [result for kind in zip(*made, strict=True) for result in kind]


def _like(old: Tensor, new: Tensor) -> Tensor:
    return new.to(old.dtype)
