"""Gradients of recurrent layers against autograd, and what the layers refuse."""

import pytest
import torch

from onnxtrain.kernels.nn.rnn.gru import gru, gru_grad, gru_training
from onnxtrain.kernels.nn.rnn.lstm import lstm
from onnxtrain.kernels.nn.rnn.lstm_training import lstm_grad, lstm_training

S, B, X, H = 5, 3, 2, 4
DIRECTIONS = ["forward", "reverse", "bidirectional"]


def _random(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(s, generator=generator, dtype=torch.float64) * 0.5 for s in shapes]


def _directions(direction: str) -> int:
    return 2 if direction == "bidirectional" else 1


def _lstm_inputs(d: int) -> list[torch.Tensor]:
    shapes = [(S, B, X), (d, 4 * H, X), (d, 4 * H, H), (d, 8 * H), (d, B, H), (d, B, H), (d, 3 * H)]
    return _random(*shapes)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("peepholes", [False, True])
def test_lstm_grad_is_the_gradient(direction: str, peepholes: bool) -> None:
    x, w, r, b, h0, c0, p = _lstm_inputs(_directions(direction))
    p = p if peepholes else torch.zeros_like(p)
    leaves = [t.requires_grad_() for t in (x, w, r, b, h0, c0, p)]
    outputs = lstm(x, w, r, b, None, h0, c0, p, direction=direction)
    grads = _random(*(tuple(t.shape) for t in outputs))
    expected = torch.autograd.grad(outputs, leaves, grads)
    with torch.no_grad():
        kept = lstm_training(x, w, r, b, None, h0, c0, p, direction=direction)
        torch.testing.assert_close(kept[:3], tuple(o.detach() for o in outputs))
        arguments = [x, w, r, None, h0, c0, kept[0], kept[3], kept[4], *grads]
        ours = lstm_grad(*arguments, p, direction=direction, wanted=(True,) * 7)
    torch.testing.assert_close(ours, expected)


def test_lstm_grad_without_peepholes_leaves_their_part_out() -> None:
    x, w, r, b, h0, c0, p = _lstm_inputs(1)
    kept = lstm_training(x, w, r, b, None, h0, c0, p)
    arguments = [x, w, r, None, h0, c0, kept[0], kept[3], kept[4], torch.ones_like(kept[0])]
    plain = lstm_grad(*arguments, wanted=(True,) * 7)
    zero = lstm_grad(*arguments, None, None, torch.zeros_like(p), wanted=(True,) * 7)
    exact = lstm_grad(*arguments, None, None, p, wanted=(True,) * 7)
    torch.testing.assert_close(plain, zero)
    assert not torch.allclose(plain[1], exact[1])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("linear", [0, 1])
def test_gru_grad_is_the_gradient(direction: str, linear: int) -> None:
    d = _directions(direction)
    x, w, r, b, h0 = _random((S, B, X), (d, 3 * H, X), (d, 3 * H, H), (d, 6 * H), (d, B, H))
    options = {"direction": direction, "linear_before_reset": linear}
    leaves = [t.requires_grad_() for t in (x, w, r, b, h0)]
    outputs = gru(x, w, r, b, None, h0, **options)
    grads = _random(*(tuple(t.shape) for t in outputs))
    expected = torch.autograd.grad(outputs, leaves, grads)
    with torch.no_grad():
        kept = gru_training(x, w, r, b, None, h0, **options)
        torch.testing.assert_close(kept[:2], tuple(o.detach() for o in outputs))
        arguments = [x, w, r, b, None, h0, kept[0], kept[2], *grads]
        ours = gru_grad(*arguments, **options, wanted=(True,) * 5)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("number", range(4))
def test_gradients_are_made_on_demand(number: int) -> None:
    x, w, r, b, h0, c0, p = _lstm_inputs(1)
    kept = lstm_training(x, w, r, b, None, h0, c0, p)
    arguments = [x, w, r, None, h0, c0, kept[0], kept[3], kept[4], torch.ones_like(kept[0])]
    wanted = tuple(n == number for n in range(4))
    found = lstm_grad(*arguments, wanted=wanted)
    assert [t is not None for t in found[:4]] == [*wanted]
    three, both = slice(3 * H), slice(6 * H)
    kept = gru_training(x, w[:, three], r[:, three], b[:, both], None, h0)
    given = [x, w[:, three], r[:, three], b[:, both], None, h0, kept[0], kept[2]]
    found = gru_grad(*given, torch.ones_like(kept[0]), wanted=wanted)
    assert [t is not None for t in found[:4]] == [*wanted]


def test_an_empty_sequence_keeps_its_state() -> None:
    x, w, r, b, h0, c0, _ = _lstm_inputs(1)
    y, h, c = lstm(x[:0], w, r, b, None, h0, c0)
    assert y.shape == (0, 1, B, H) and torch.equal(h, h0) and torch.equal(c, c0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": 1.0}, "clip is not supported"),
        ({"input_forget": 1}, "input_forget is not supported"),
        ({"activations": ("relu", "tanh", "tanh")}, "layers with a gradient know"),
        ({"direction": "sideways"}, "must be one of forward, reverse, bidirectional"),
    ],
)
def test_layers_with_a_gradient_refuse_options(options: dict[str, object], message: str) -> None:
    x, w, r, *_ = _lstm_inputs(1)
    with pytest.raises(ValueError, match=message):
        lstm_training(x, w, r, **options)


def test_layers_with_a_gradient_refuse_lengths_and_missing_states() -> None:
    x, w, r, *_ = _lstm_inputs(1)
    with pytest.raises(ValueError, match="sequence lengths input tensor"):
        lstm_training(x, w, r, None, torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match="LSTMTraining returns them"):
        lstm_grad(x, w, r, wanted=(True,) * 7)
    with pytest.raises(ValueError, match="GRUTraining returns them"):
        gru_grad(x, w[:, : 3 * H], r[:, : 3 * H], wanted=(True,) * 5)


def test_unknown_activations_are_refused() -> None:
    x, w, r, *_ = _lstm_inputs(1)
    with pytest.raises(ValueError, match="unknown activation 'Cosine'"):
        lstm(x, w, r, activations=("Cosine", "Tanh", "Tanh"))
    with pytest.raises(ValueError, match="3 activations are needed"):
        lstm(x, w, r, activations=("Tanh",))
