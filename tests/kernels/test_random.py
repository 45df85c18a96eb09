"""Random tensors: distributions, bounds and reproducibility."""

import pytest
import torch

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.tensor.random import (
    bernoulli,
    multinomial,
    random_normal,
    random_normal_like,
    random_uniform,
    random_uniform_like,
)
from onnxtrain.types import FLOATS, DataType

COUNT = 20000
FIVE_SIGMA = 5 / COUNT**0.5
"""Five standard deviations of the mean of ``COUNT`` values of unit variance."""


def generator(device: str, seed: int = 0) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


@pytest.mark.parametrize("dtype", sorted(FLOATS), ids=lambda t: t.name)
def test_normal(dtype: DataType, device: str) -> None:
    drawn = random_normal(
        shape=(COUNT,),
        dtype=dtype,
        mean=3.0,
        scale=2.0,
        rng=generator(device),
        device=torch.device(device),
    )
    assert drawn.dtype is to_torch(dtype)
    wide = drawn.double()
    assert abs(wide.mean().item() - 3) < 2 * FIVE_SIGMA
    assert abs(wide.std().item() - 2) < 2 * FIVE_SIGMA


@pytest.mark.parametrize("dtype", sorted(FLOATS), ids=lambda t: t.name)
def test_uniform(dtype: DataType, device: str) -> None:
    drawn = random_uniform(
        shape=(COUNT,),
        dtype=dtype,
        low=-1.0,
        high=3.0,
        rng=generator(device),
        device=torch.device(device),
    )
    assert drawn.dtype is to_torch(dtype)
    wide = drawn.double()
    assert wide.min().item() >= -1 and wide.max().item() <= 3
    assert abs(wide.mean().item() - 1) < 4 * 12**-0.5 * FIVE_SIGMA


def test_like_takes_shape_and_type(device: str) -> None:
    x = torch.zeros(2, 3, dtype=torch.float16, device=device)
    for kernel in (random_normal_like, random_uniform_like):
        same = kernel(x, rng=generator(device))
        other = kernel(x, dtype=DataType.DOUBLE, rng=generator(device))
        assert (same.shape, same.dtype) == (x.shape, torch.float16)
        assert (other.shape, other.dtype) == (x.shape, torch.float64)


def test_the_generator_decides(device: str) -> None:
    x = torch.zeros(50, device=device)
    draw = [random_normal_like(x, rng=generator(device, seed)) for seed in (1, 1, 2)]
    assert torch.equal(draw[0], draw[1])
    assert not torch.equal(draw[0], draw[2])


def test_a_seed_gives_the_same_numbers_at_every_run(device: str) -> None:
    x = torch.full((50,), 0.5, device=device)
    rng = generator(device)
    for kernel in (random_normal_like, random_uniform_like, bernoulli):
        assert torch.equal(kernel(x, seed=7.0, rng=rng), kernel(x, seed=7.0, rng=rng))
        assert not torch.equal(kernel(x, seed=7.0, rng=rng), kernel(x, seed=8.0, rng=rng))
    assert torch.equal(rng.get_state(), generator(device).get_state())


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_bernoulli(chance: float, device: str) -> None:
    p = torch.full((COUNT,), chance, device=device)
    drawn = bernoulli(p, dtype=DataType.INT64, rng=generator(device))
    assert set(drawn.tolist()) == {0, 1}
    assert abs(drawn.double().mean().item() - chance) < FIVE_SIGMA / 2


def test_multinomial(device: str) -> None:
    chances = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.4, 0.0]], device=device)
    drawn = multinomial(chances.log(), sample_size=COUNT, rng=generator(device))
    assert drawn.dtype is torch.int32 and drawn.shape == (2, COUNT)
    for row, expected in zip(drawn, chances, strict=True):
        found = torch.bincount(row.long(), minlength=3) / COUNT
        assert (found - expected).abs().max().item() < FIVE_SIGMA / 2
    assert not (drawn[1] == 2).any()
