"""Kernels that go through large tensors in blocks: cut small, they give what they give uncut."""

import math
from typing import Any

import pytest
import torch

from onnxtrain.kernels import blocks, gist
from onnxtrain.kernels.nn.max_pool import max_pool, max_pool_grad
from onnxtrain.kernels.nn.pool import average_pool_grad
from onnxtrain.kernels.optimizer import parameter
from onnxtrain.kernels.optimizer.lamb import lamb_optimizer
from onnxtrain.kernels.reduction import norm

LAYOUTS = [torch.contiguous_format, torch.channels_last]
HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is as small for every machine."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def _rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _group(moments: torch.dtype) -> list[torch.Tensor]:
    """Weights, a 16-bit gradient, moments and 16-bit weights: 11 elements."""
    w, g, m, v = (_rand(11, seed=seed) for seed in range(4))
    half = torch.bfloat16
    return [w, g.to(half), m.to(moments), v.abs().to(moments), w.to(half)]


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("moments", [torch.float32, torch.float16])
@pytest.mark.parametrize("mode", [0, 1])
def test_adam(monkeypatch: pytest.MonkeyPatch, mode: int, moments: Any, update: bool) -> None:
    def step(*wanted: bool) -> tuple[Any, ...]:
        form = {"weight_decay_mode": mode, "lambda_": 0.1, "update": update}
        scalars, scale = [torch.tensor(0.1), torch.tensor([3])], torch.tensor(4.0)
        return parameter.adam_optimizer(*scalars, *_group(moments), scale, wanted=wanted, **form)

    whole = step(*[True] * 6)
    monkeypatch.setattr(blocks, "SIZE", 4)
    torch.testing.assert_close(step(*[True] * 6), whole)
    monkeypatch.setattr(blocks, "alike", lambda *_: False)
    torch.testing.assert_close(whole, step(*[True] * 6))


@pytest.mark.parametrize("moments", [torch.float32, torch.float16])
def test_lamb_with_elements_that_stay(monkeypatch: pytest.MonkeyPatch, moments: Any) -> None:
    group = _group(moments)
    group[1][5] = math.inf
    group[0][9] = math.nan
    before = [t.clone() for t in group]

    def step(signal: torch.Tensor | None = None) -> Any:
        rate, count = torch.tensor(0.1), torch.tensor([3])
        lists = {"alpha": [0.9], "beta": [0.99], "lambda_": [0.1], "epsilon": [1e-6]}
        options = {**lists, "wanted": (True,) * 6}
        return lamb_optimizer(signal, torch.tensor(2.0), None, rate, count, *group, **options)

    whole = step()
    assert whole[1][5] == group[0][5] and whole[2][5] == 0
    monkeypatch.setattr(blocks, "SIZE", 4)
    torch.testing.assert_close(step(), whole, equal_nan=True)
    torch.testing.assert_close(step(torch.tensor([False]))[1:], before, equal_nan=True)
    torch.testing.assert_close(group, before, equal_nan=True)
    group[0][9] = 1.0
    cut = step()
    monkeypatch.setattr("onnxtrain.kernels.optimizer.lamb.takes", lambda *_: False)
    torch.testing.assert_close(cut, step())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("count", [16, 43, 64])
def test_tiles(monkeypatch: pytest.MonkeyPatch, count: int, dtype: torch.dtype) -> None:
    monkeypatch.setattr(blocks, "SIZE", 16)
    usual = _rand(count)
    special = usual.clone()
    special[3], special[-1], special[count // 2] = math.inf, math.nan, -0.0
    tiny = usual * torch.logspace(-45, -30, count)
    wide = usual * torch.logspace(-20, 20, count)
    below = torch.nextafter(torch.arange(count) % 40 + 0.5, torch.zeros(count))
    for x in (usual, special, tiny, wide, below, -below, usual.relu(), torch.zeros(count)):
        code = gist.pack_msfp15(x.to(dtype))
        assert code.equal(gist._pack_tiles(x.to(dtype)))
        for number in (1, 10, 11, 16):
            found = gist.unpack_msfp15(code, to=number)
            true = gist._unpack_tiles(code, found.dtype)
            assert found.equal(true) and found.signbit().equal(true.signbit())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("padded", [False, True])
def test_pools(monkeypatch: Any, padded: bool, dtype: torch.dtype, layout: Any) -> None:
    x = _rand(5, 3, 7, 6).to(dtype).to(memory_format=layout)
    form = {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [int(padded)] * 4}
    y, places = max_pool(x, **form, wanted=(True, True))
    dy = _rand(*y.shape, seed=1).to(dtype).to(memory_format=layout)

    def both(dy: torch.Tensor) -> list[torch.Tensor]:
        most = max_pool_grad(dy, places, x.shape, **form, out_shape=None)
        return [most, average_pool_grad(dy, x.shape, **form, out_shape=None)]

    few, true = both(dy), both(dy.double().contiguous())
    monkeypatch.setattr("onnxtrain.kernels.nn.max_pool.FEW", 0)
    whole = both(dy)
    torch.testing.assert_close(few, whole)
    monkeypatch.setattr(blocks, "SIZE", 1)
    for cut, uncut, exact in zip(both(dy), whole, true, strict=True):
        assert cut.equal(uncut) and cut.is_contiguous(memory_format=layout)
        # rounded once
        torch.testing.assert_close(cut, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
    far = places.clone(memory_format=torch.contiguous_format)
    far[-1, -1, -1, -1] = 0
    assert max_pool_grad(dy, far, x.shape, **form, out_shape=None).ne(whole[0]).any()
    far[-1, -1, -1, -1] = x.numel()
    with pytest.raises(ValueError, match="out of range"):
        max_pool_grad(dy, far, x.shape, **form, out_shape=None)


@pytest.mark.parametrize("dtype", HALVES)
def test_long_norms(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    xs = [_rand(*shape).to(dtype) for shape in ((5, 7), (3,), (4, 6))]
    xs.append(_rand(6, 9).to(dtype).t())
    monkeypatch.setattr(blocks, "SIZE", 8)
    true = torch.cat([x.double().flatten() for x in xs]).norm()
    found = norm.all_l2(*xs)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), true, rtol=1e-6, atol=0)


def test_gradients_of_pools_are_differentiable() -> None:
    x = _rand(2, 3, 6, 6)
    form = {"kernel_shape": [3, 3], "strides": [2, 2]}
    y, places = max_pool(x, **form, wanted=(True, True))
    dy = torch.ones_like(y, requires_grad=True)
    for grad in (
        max_pool_grad(dy, places, x.shape, **form, out_shape=None),
        average_pool_grad(dy, x.shape, **form, out_shape=None),
    ):
        [found] = torch.autograd.grad(grad.sum(), dy)
        torch.testing.assert_close(found, torch.ones_like(y))
