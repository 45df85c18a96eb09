"""Random tensors, drawn from the session's generator.

A node with a seed of its own draws the same numbers at every run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.ordered import scanned
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FIXED, FLOATS, DataType


@kernel("RandomNormal", needs=["rng", "device"], T=FLOATS)
def random_normal(
    *,
    shape: tuple[int, ...],
    dtype: int = DataType.FLOAT,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    rng: torch.Generator,
    device: torch.device,
) -> Tensor:
    """mean + scale * n, with n of the standard normal distribution."""
    empty = torch.empty(shape, dtype=to_torch(dtype), device=device)
    return empty.normal_(mean, scale, generator=_source(seed, rng))


@kernel("RandomNormalLike", needs=["rng"], T2=FLOATS)
def random_normal_like(
    input: Tensor,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    rng: torch.Generator,
) -> Tensor:
    """RandomNormal in the shape (and, without ``dtype``, the type) of the input."""
    return _empty_like(input, dtype).normal_(mean, scale, generator=_source(seed, rng))


@kernel("RandomUniform", needs=["rng", "device"], T=FLOATS)
def random_uniform(
    *,
    shape: tuple[int, ...],
    dtype: int = DataType.FLOAT,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    rng: torch.Generator,
    device: torch.device,
) -> Tensor:
    """Values spread evenly over [low, high)."""
    empty = torch.empty(shape, dtype=to_torch(dtype), device=device)
    return empty.uniform_(low, high, generator=_source(seed, rng))


@kernel("RandomUniformLike", needs=["rng"], T2=FLOATS)
def random_uniform_like(
    input: Tensor,
    *,
    dtype: int | None = None,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    rng: torch.Generator,
) -> Tensor:
    """RandomUniform in the shape (and, without ``dtype``, the type) of the input."""
    return _empty_like(input, dtype).uniform_(low, high, generator=_source(seed, rng))


def _source(seed: float | None, rng: torch.Generator) -> torch.Generator:
    """The session's generator, or a new one for a node that has a seed."""
    return rng if seed is None else torch.Generator(rng.device).manual_seed(int(seed))


def _empty_like(x: Tensor, dtype: int | None) -> Tensor:
    return torch.empty(
        x.shape, dtype=x.dtype if dtype is None else to_torch(dtype), device=x.device
    )


@kernel("Bernoulli", since=15, needs=["rng"], T1=FLOATS, T2=FIXED)
def bernoulli(
    input: Tensor, *, dtype: int | None = None, seed: float | None = None, rng: torch.Generator
) -> Tensor:
    """1 with the probability that the input says, else 0."""
    chance = widen(input)
    drawn = torch.rand(
        chance.shape, generator=_source(seed, rng), dtype=chance.dtype, device=chance.device
    )
    return (drawn < chance).to(input.dtype if dtype is None else to_torch(dtype))


@kernel("Multinomial", since=7, needs=["rng", "deterministic"], T1=FLOATS)
def multinomial(
    input: Tensor,
    *,
    dtype: int = DataType.INT32,
    sample_size: int = 1,
    seed: float | None = None,
    rng: torch.Generator,
    deterministic: bool = False,
) -> Tensor:
    """Class numbers drawn with the probabilities softmax(input), ``sample_size`` per row."""
    chances = widen(input).softmax(-1)
    if deterministic and input.is_cuda:
        total = scanned(chances, 1, torch.add)
    else:
        total = chances.cumsum(-1)
    shape = (input.shape[0], sample_size)
    drawn = torch.rand(shape, generator=_source(seed, rng), dtype=total.dtype, device=total.device)
    # Scaled by the last sum, which rounding keeps from being exactly 1.
    found = torch.searchsorted(total, drawn * total[:, -1:], right=True)
    return found.clamp(max=input.shape[1] - 1).to(to_torch(dtype))
