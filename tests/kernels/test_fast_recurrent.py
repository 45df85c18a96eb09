"""LSTM and GRU with one launch or few operations a step, against all of them in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.fast import drawn, near, on_devices
from onnxtrain.kernels.nn.rnn import fused, onednn, scan
from onnxtrain.kernels.nn.rnn import gru as gru_module
from onnxtrain.kernels.nn.rnn import lstm as lstm_module
from onnxtrain.kernels.nn.rnn import lstm_training as lstm_training_module
from onnxtrain.kernels.nn.rnn import quickest as ways
from onnxtrain.kernels.nn.rnn.gru import gru, gru_grad, gru_training
from onnxtrain.kernels.nn.rnn.lstm import lstm
from onnxtrain.kernels.nn.rnn.lstm_training import lstm_grad, lstm_training

T, B, D, H = 4, 3, 5, 7
DIRECTIONS = ["forward", "reverse", "bidirectional"]
GRU = {"linear_before_reset": 1}


def given(device: str, dtype: str, gates: int, count: int) -> list[Tensor]:
    """X, W, R, B, and as many states before the first step."""
    shapes = [(T, B, D), (2, gates * H, D), (2, gates * H, H), (2, 2 * gates * H), *[(2, B, H)] * 2]
    return [drawn(*shape, device=device, dtype=dtype) for shape in shapes[: 4 + count]]


def cut(tensors: list[Tensor], direction: str) -> list[Tensor]:
    """As many directions as there are."""
    count = 2 if direction == "bidirectional" else 1
    return [tensors[0], *(t[:count].contiguous() for t in tensors[1:])]


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps that were launched; Triton's interpreter serves a CPU, but not float64."""
    found: list[str] = []
    quick = fused.fast.load("recurrent")
    for name in ("lstm_step", "lstm_step_back", "gru_step", "gru_step_back"):
        monkeypatch.setattr(quick, name, counted(found, name, getattr(quick, name)))
    monkeypatch.setattr(quick, "BLOCK", 16)
    monkeypatch.setattr(ways, "_on_gpu", lambda r: r.dtype is not torch.float64)
    monkeypatch.setattr(onednn, "takes", lambda x, r: False)
    monkeypatch.setattr(scan, "factor", lambda w: w)  # products in 16 bits, as on a GPU
    return found


def counted(found: list[str], name: str, step: Callable[..., None]) -> Callable[..., None]:
    def changed(*arguments: Any) -> None:
        found.append(name)
        step(*arguments)

    return changed


def in_all_ways(
    call: Callable[..., Any], tensors: list[Tensor | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By launches, by few operations, step by step as autograd follows it, and so in float64."""
    quick = [call(*tensors)]
    with monkeypatch.context() as patch:
        patch.setattr(ways, "_on_gpu", lambda r: False)
        quick.append(call(*tensors))
        for module in (lstm_module, lstm_training_module, gru_module):
            patch.setattr(module, "quickest", lambda *tensors: None)
        torchs = call(*tensors)
        wide = call(*(None if t is None else t.double() for t in tensors))
    for ours in quick:
        for one, other, true in zip(ours, torchs, wide, strict=True):
            if true is None:
                assert one is None and other is None
                continue
            assert one.dtype == other.dtype and one.shape == other.shape
            near(one, other, true)


@on_devices
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("states", [0, 2])
def test_lstm(
    states: int,
    direction: str,
    device: str,
    dtype: str,
    launched: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = cut(given(device, dtype, 4, states), direction)
    x, w, r, b, *first = tensors
    begin = [*first, None, None][:2]
    turns = T * len(w)
    forward = [x, w, r, b, None, *begin]
    in_all_ways(lambda *t: lstm(*t, direction=direction), forward, monkeypatch)
    in_all_ways(lambda *t: lstm_training(*t, direction=direction), forward, monkeypatch)
    assert launched == ["lstm_step"] * 2 * turns
    every, _, _, cells, gates = lstm_training(*forward, direction=direction)
    given_back = [drawn(*every.shape, device=device, dtype=dtype)]
    given_back += [drawn(len(w), B, H, device=device, dtype=dtype) for _ in range(2)]
    launched.clear()
    for arrived in (given_back, [given_back[0], None, None], [None, *given_back[1:]]):
        back = [x, w, r, None, *begin, every, cells, gates, *arrived]
        call = lambda *t: lstm_grad(*t, direction=direction, wanted=(True,) * 7)  # noqa: E731
        in_all_ways(call, back, monkeypatch)
    assert launched == ["lstm_step_back"] * 3 * turns


@on_devices
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_gru(
    bias: bool,
    direction: str,
    device: str,
    dtype: str,
    launched: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, w, r, b, first = cut(given(device, dtype, 3, 1), direction)
    turns = T * len(w)
    forward = [x, w, r, b if bias else None, None, first]
    in_all_ways(lambda *t: gru(*t, direction=direction, **GRU), forward, monkeypatch)
    in_all_ways(lambda *t: gru_training(*t, direction=direction, **GRU), forward, monkeypatch)
    assert launched == ["gru_step"] * 2 * turns
    every, _, gates = gru_training(*forward, direction=direction, **GRU)
    launched.clear()
    dy = drawn(*every.shape, device=device, dtype=dtype)
    last = drawn(len(w), B, H, device=device, dtype=dtype)
    for arrived in ([dy, last], [dy, None], [None, last]):
        back = [*forward, every, gates, *arrived]
        call = lambda *t: gru_grad(*t, direction=direction, wanted=(True,) * 5, **GRU)  # noqa: E731
        in_all_ways(call, back, monkeypatch)
    assert launched == ["gru_step_back"] * 3 * turns


def test_gradients_that_do_not_lie_one_behind_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a Transpose of batch and directions."""
    x, w, r, b = given("cpu", "float32", 4, 0)
    every, _, _, cells, gates = lstm_training(x, w, r, b, direction="bidirectional")
    dy = drawn(T, B, 2, H, device="cpu", dtype="float32").transpose(1, 2)
    back = [x, w, r, None, None, None, every, cells, gates, dy]
    call = lambda *t: lstm_grad(*t, direction="bidirectional", wanted=(True,) * 7)  # noqa: E731
    in_all_ways(call, back, monkeypatch)


@pytest.mark.parametrize("kind", range(7))
def test_a_gradient_alone_is_that_among_all(kind: int) -> None:
    """Whatever else nobody asks for, in directions that go back in time, too."""
    x, w, r, b = given("cpu", "float32", 4, 0)
    every, *_, cells, gates = lstm_training(x, w, r, b, direction="bidirectional")
    back = [x, w, r, None, None, None, every, cells, gates, torch.ones_like(every)]
    every_one = lstm_grad(*back, direction="bidirectional", wanted=(True,) * 7)
    wanted = tuple(at == kind for at in range(kind + 1))
    alone = lstm_grad(*back, direction="bidirectional", wanted=wanted)
    torch.testing.assert_close(alone[kind], every_one[kind], rtol=0, atol=0)
    assert kind == 6 or alone[6] is None


def test_other_layers_go_step_by_step(launched: list[str]) -> None:
    """Peepholes, bounds, other activations, lengths, nothing, and what autograd watches."""
    x, w, r, b = cut(given("cpu", "float32", 4, 0), "forward")
    lens = torch.full((B,), T, dtype=torch.int32)
    lstm(x, w, r, b, p=torch.ones(1, 3 * H))
    lstm(x, w, r, b, clip=0.5)
    lstm(x, w, r, b, activations=["Relu", "Tanh", "Tanh"])
    lstm(x, w, r, b, lens)
    lstm(x, w, r, b, input_forget=1)
    lstm(x[:0], w, r, b)
    lstm_training(x[:, :0], w, r, b)
    lstm(x.requires_grad_(), w, r, b)[0].sum().backward()
    x, w, r, b = cut(given("cpu", "float32", 3, 0), "forward")
    gru(x, w, r, b)
    assert not launched and x.grad is None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_activations_of_small_and_large_values(device: str) -> None:
    """tanh is as close for tiny values as for others, and does not overflow."""
    edges = torch.tensor([0.0, 1e-6, -1e-3, 0.2499, 0.2501, -0.5, 3.0, -90.0, 500.0, -1e30])
    edges = edges.to(device, torch.float32)
    x = torch.zeros(1, len(edges), 4, device=device)
    x[..., 0], x[..., 1], x[..., 2], x[..., 3] = 50.0, 50.0, -50.0, edges
    memory = torch.zeros(len(edges), 1, device=device)
    state = torch.empty(len(edges), 1, device=device)
    flat = x[0].contiguous()
    fused.fast.load("recurrent").lstm_step(state, memory, flat, torch.zeros_like(flat), None)
    expected = edges.double().tanh()
    torch.testing.assert_close(memory[:, 0].double(), expected, rtol=5e-7, atol=0)
    torch.testing.assert_close(state[:, 0].double(), expected.tanh(), rtol=1e-6, atol=0)
