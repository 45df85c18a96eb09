"""Optimizers whose rate and step lie on the device: what those with numbers give."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch

from onnxtrain.kernels import lasting
from onnxtrain.kernels.optimizer import device as on_device
from onnxtrain.kernels.optimizer.sequence import adam_w_optimizer, sgd_optimizer_v2

SHAPES = [(3, 4), (5,), (0, 2), (2, 2, 2)]
MODES: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.0},
    {"adam_mode": 1, "weight_decay": 0.25},
    {"adam_mode": 1, "correct_bias": 0},
    {"adam_mode": 1, "alpha": 0.0},
]


def lists(dtype: torch.dtype, device: str) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    found = [[torch.randn(s, generator=generator).to(dtype) for s in SHAPES] for _ in range(4)]
    found[3] = [v.abs() for v in found[3]]
    return [[t.to(device) for t in items] for items in found]


@pytest.fixture
def never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU are treated like those of a GPU."""
    monkeypatch.setattr(on_device, "unread", lambda number: isinstance(number, torch.Tensor))


def near(ours: list[list[torch.Tensor]], theirs: list[list[torch.Tensor]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one, other, strict=True):
            # a rate of float32 is rounded at most once more
            torch.testing.assert_close(
                a, b, rtol=1e-6 if a.dtype != torch.float16 else 2e-3, atol=1e-7
            )


@pytest.mark.parametrize("attributes", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_adam_w(never_read: None, device: str, attributes: Any, dtype: torch.dtype) -> None:
    # in float32 torch's kernel loses digits of 1 - 0.999
    ours, exact = lists(dtype, device), lists(torch.float64, device)
    for step in (1, 2, 1000):
        rate = torch.tensor([0.0625 / step], device=device)
        count = torch.tensor([step], device=device)
        rounded = [[t.to(dtype) for t in items] for items in exact]
        exact = [[t.to(torch.float64) for t in items] for items in rounded]
        flag, *_ = adam_w_optimizer(rate, count, *ours, **attributes)
        adam_w_optimizer(0.0625 / step, step, *exact, **attributes)
        assert flag.tolist() == [True]
    near(ours, [[t.to(dtype) for t in items] for items in exact])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_gradient_descent(never_read: None, device: str, dtype: torch.dtype) -> None:
    ours, theirs = lists(dtype, device)[:2], lists(dtype, device)[:2]
    sgd_optimizer_v2(torch.tensor([0.0625], device=device), *ours)
    sgd_optimizer_v2(0.0625, *theirs)
    near(ours, theirs)


@pytest.mark.parametrize("mode", [0, 1])
def test_step_zero_makes_nan_of_the_weights_only(never_read: None, device: str, mode: int) -> None:
    given = lists(torch.float32, device)
    rate, step = torch.tensor([0.1], device=device), torch.tensor([0], device=device)
    adam_w_optimizer(rate, step, *given, adam_mode=mode)
    assert all(w.isnan().all() for w in given[0])
    assert all(m.isfinite().all() for m in (*given[2], *given[3]))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("step", [1, 3, 10**6])
def test_the_device_computes_corrections(device: str, step: int, plain: bool) -> None:
    many = triton_module("many")
    rate, count = torch.tensor([0.25], device=device), torch.tensor([step], device=device)
    found = many.adam_numbers(rate, count, (0.9, 0.999), 1e-6, plain, True).tolist()
    root = math.sqrt(1 - 0.999**step)
    expected = [0.25, 1 - 0.9**step, root, 1e-6 / root if plain else 1e-6]
    assert found == pytest.approx(expected, rel=1e-6)
    found = many.adam_numbers(rate, count, (0.9, 0.999), 1e-6, plain, False).tolist()
    assert found == pytest.approx([0.25, 1.0, 1.0, 1e-6], rel=1e-6)


@pytest.mark.parametrize("decays", [(0.25, 0.0), (0.0, 0.25)])
def test_one_launch_updates_all(device: str, decays: tuple[float, float]) -> None:
    many = triton_module("many")
    ours, theirs = (
        [[t for t in i if t.numel()] for i in lists(torch.float32, device)] for _ in "ab"
    )
    rate, step = torch.tensor([0.125], device=device), torch.tensor([3], device=device)
    after = bool(decays[1])
    with lasting.keeping() as kept:
        numbers = many.adam_numbers(rate, step, (0.9, 0.99), 1e-6, after, True)
        many.adam_w_by(ours, numbers, (0.9, 0.99), decays)
    assert len(kept) == 1
    adam_w_optimizer(
        0.125, 3, *theirs, beta=0.99, epsilon=1e-6, weight_decay=0.25, adam_mode=int(after)
    )
    near(ours, theirs)


def test_layouts_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    chunked = triton_module("common.chunks")
    monkeypatch.setattr(chunked, "MOST_LAYOUTS", 2)
    for name in ("_tables", "_cuts"):
        monkeypatch.setattr(chunked, name, type(chunked._cuts)())
    tensors = [torch.ones(size) for size in (3, 5, 7)]
    for tensor in tensors:
        chunked.laid([tensor])
    assert len(chunked._tables) == len(chunked._cuts) == 2
    (part,) = chunked.laid([tensors[0]])
    assert part.table.tolist() == [tensors[0].data_ptr()] and part.chunks.tolist() == [[0, 0, 3]]
    assert (part.tensors, part.programs) == (1, 1)


def test_only_tensors_that_lie_well_are_laid_out() -> None:
    chunked = triton_module("common.chunks")
    room = torch.zeros(4, 8)
    assert chunked.laid([room[0], room[1]], [room[2], room[3]]) is not None
    assert chunked.laid([room[0]], [room[2][1:]]) is None, "not where wide loads may begin"
    assert chunked.laid([room[:, 0]]) is None, "not contiguous"
    assert chunked.laid([room.double()]) is None, "of an unknown type"
    parts = chunked.laid([room, room[:0], room.half()])
    assert [(part.tensors, part.programs) for part in parts] == [(1, 1), (1, 1)]
    assert chunked.laid([room[:0]]) == []


@pytest.mark.gpu
def test_a_recorded_step_finds_tensors_that_were_made_while_it_was_recorded() -> None:
    many, base = triton_module("many"), torch.randn(3000, device="cuda")
    weights = [torch.zeros(3000, device="cuda"), torch.zeros(100, device="cuda")]

    def work() -> torch.Tensor:
        gradients = [base * 2, (base[:100] * 3).to(torch.bfloat16)]
        assert many.sgd(weights, gradients, lr=1.0)
        norm: torch.Tensor = many.norm(gradients)
        return norm

    work()
    graph = torch.cuda.CUDAGraph()
    with lasting.keeping() as kept, torch.cuda.graph(graph):
        found = work()
    for _ in range(3):
        base.normal_()
        for weight in weights:
            weight.zero_()
        graph.replay()
        small = (base[:100] * 3).to(torch.bfloat16).float()
        assert torch.equal(weights[0], -base * 2) and torch.equal(weights[1], -small)
        true = torch.cat([base * 2, small]).double().norm().float()
        torch.testing.assert_close(found, true, rtol=1e-6, atol=0.0)
    assert len(kept) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("waits", [False, True])
def test_a_factor_is_a_factor_of_all_gradients(
    device: str, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, waits: bool
) -> None:
    if waits:
        monkeypatch.setattr(on_device, "unread", lambda number: isinstance(number, torch.Tensor))
    factor = torch.tensor(0.25, dtype=dtype, device=device)
    rate, step = torch.tensor([0.0625], device=device), torch.tensor([3], device=device)
    for update in (
        lambda given, **k: adam_w_optimizer(rate, step, *given, **k),
        lambda given, **k: sgd_optimizer_v2(rate, *given[:2], **k),
    ):
        ours, theirs = lists(dtype, device), lists(dtype, device)
        kept = [gradient.clone() for gradient in ours[1]]
        update(ours, factor=factor)
        theirs[1] = [gradient * 0.25 for gradient in theirs[1]]
        update(theirs)
        near([ours[0], *ours[2:]], [theirs[0], *theirs[2:]])
        assert all(map(torch.equal, ours[1], kept))


def triton_module(name: str) -> Any:
    pytest.importorskip("triton", reason="Triton is not installed")
    return importlib.import_module(f"onnxtrain.kernels.fast.{name}")


@pytest.mark.parametrize("size", [(1 << 31) + 1024, 1 << 33])
def test_the_first_chunk_of_a_tensor_that_32_bits_do_not_count(size: int) -> None:
    """Stacked weights of experts have as many elements; here there is memory for one chunk."""
    many, chunked = triton_module("many"), triton_module("common.chunks")
    weights, gradients = torch.zeros(chunked.CHUNK), torch.ones(chunked.CHUNK)
    table = torch.tensor([weights.data_ptr(), gradients.data_ptr()])
    kind = chunked.KINDS[torch.float32]
    forms = False, False, False, kind, kind, None, chunked.CHUNK
    given = table, torch.tensor([[0, 0, size]]), table, table, table
    many._sgd[(1,)](*given, 1, 0.5, *forms, num_warps=chunked.WARPS)
    assert bool((weights == -0.5).all())
