"""Recurrent layers of any size and direction: values step by step, gradients by autograd."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.properties.judge import judge, place
from kernels.properties.strategies import Draw, flags, float_types, layouts, numbers, row
from onnxtrain.kernels.nn.rnn.gru import gru_grad, gru_training
from onnxtrain.kernels.nn.rnn.lstm_training import lstm_grad, lstm_training
from onnxtrain.types import DataType

Tensor = torch.Tensor
DIRECTIONS = {"forward": [1], "reverse": [-1], "bidirectional": [1, -1]}


@st.composite
def layers(draw: Draw, gates: int) -> dict[str, Any]:
    """Inputs of a recurrent layer by name; those that may be left out sometimes are."""
    direction = draw(st.sampled_from(list(DIRECTIONS)))
    count = len(DIRECTIONS[direction])
    times, inputs, hidden = (draw(st.integers(1, 4)) for _ in range(3))
    batch = draw(st.integers(0, 4))
    scale = 0.5

    def maybe(*shape: int) -> Tensor | None:
        return draw(numbers(shape, scale=scale)) if draw(st.booleans()) else None

    found: dict[str, Any] = {
        "x": draw(numbers((times, batch, inputs))),
        "w": draw(numbers((count, gates * hidden, inputs), scale=scale)),
        "r": draw(numbers((count, gates * hidden, hidden), scale=scale)),
        "b": maybe(count, 2 * gates * hidden),
        "h0": maybe(count, batch, hidden),
    }
    if gates == 4:
        found |= {"c0": maybe(count, batch, hidden), "p": maybe(count, 3 * hidden)}
    return found | {"direction": direction}


def zeros_or(value: Tensor | None, direction: int, like: Tensor, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=like.dtype) if value is None else value[direction]


def lstm(x: Any, w: Any, r: Any, b: Any, h0: Any, c0: Any, p: Any, direction: str) -> Any:
    """HAll, HFinal, CFinal, CAll and the gates i, o, f, c."""
    batch, hidden = x.shape[1], r.shape[-1]
    every: list[list[Tensor]] = [[], [], [], [], []]
    for d, sign in enumerate(DIRECTIONS[direction]):
        h, c = (zeros_or(s, d, x, batch, hidden) for s in (h0, c0))
        bias = zeros_or(b, d, x, 8 * hidden)
        p_i, p_o, p_f = zeros_or(p, d, x, 3 * hidden).chunk(3)
        steps: list[tuple[Tensor, ...]] = []
        for at in list(range(len(x)))[::sign]:
            total = x[at] @ w[d].T + h @ r[d].T + bias[: 4 * hidden] + bias[4 * hidden :]
            i, o, f, g = total.chunk(4, -1)
            i, f, g = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c), torch.tanh(g)
            c = f * c + i * g
            o = torch.sigmoid(o + p_o * c)
            h = o * torch.tanh(c)
            steps.append((h, c, torch.cat([i, o, f, g], -1)))
        hs, cs, gates = (torch.stack(kind) for kind in zip(*steps[::sign], strict=True))
        for found, value in zip(every, (hs, h, c, cs, gates), strict=True):
            found.append(value)
    return tuple(torch.stack(v, 1 if v[0].ndim == 3 else 0) for v in every)


def gru(x: Any, w: Any, r: Any, b: Any, h0: Any, direction: str, linear: int) -> Any:
    """HAll, HFinal and the gates z, r, n."""
    batch, hidden = x.shape[1], r.shape[-1]
    every: list[list[Tensor]] = [[], [], []]
    for d, sign in enumerate(DIRECTIONS[direction]):
        h = zeros_or(h0, d, x, batch, hidden)
        wb, rb = zeros_or(b, d, x, 6 * hidden).chunk(2)
        r_z, r_r, r_n = r[d].chunk(3)
        b_z, b_r, b_n = rb.chunk(3)
        steps: list[tuple[Tensor, ...]] = []
        for at in list(range(len(x)))[::sign]:
            z, reset, n = (x[at] @ w[d].T + wb).chunk(3, -1)
            z, reset = torch.sigmoid(z + h @ r_z.T + b_z), torch.sigmoid(reset + h @ r_r.T + b_r)
            inner = reset * (h @ r_n.T + b_n) if linear else (reset * h) @ r_n.T + b_n
            n = torch.tanh(n + inner)
            h = (1 - z) * n + z * h
            steps.append((h, torch.cat([z, reset, n], -1)))
        hs, gates = (torch.stack(kind) for kind in zip(*steps[::sign], strict=True))
        for found, value in zip(every, (hs, h, gates), strict=True):
            found.append(value)
    return tuple(torch.stack(v, 1 if v[0].ndim == 3 else 0) for v in every)


def sizes_for(outputs: int) -> Any:
    """States and gates are at most about 1, but come from sums of products of other sizes."""

    def terms(x: Tensor, w: Tensor, r: Tensor, *_: Any, **__: Any) -> Any:
        products = torch.einsum("tbi,dgi->tbdg", x.abs(), w.abs())
        largest = products.amax() if products.numel() else torch.zeros(())
        return (largest + r.abs().sum(-1).amax() + 1,) * outputs

    return terms


@given(layer=layers(4), dtype=float_types, layout=layouts)
def test_lstm_training(layer: Any, dtype: DataType, layout: int, device: str) -> None:
    def reference(
        x: Any, w: Any, r: Any, b: Any, _: Any, h0: Any, c0: Any, p: Any, **o: Any
    ) -> Any:
        return lstm(x, w, r, b, h0, c0, p, o["direction"])

    names = ("x", "w", "r", "b", None, "h0", "c0", "p")
    inputs = [None if name is None else layer[name] for name in names]
    attributes = {"direction": layer["direction"], "hidden_size": layer["r"].shape[-1]}
    case = row("LSTMTraining", inputs, reference, attributes=attributes, outputs=5)
    judge(case, dtype, device, layout, exact=False, terms=sizes_for(5))


@given(layer=layers(3), linear=flags, dtype=float_types, layout=layouts)
def test_gru_training(layer: Any, linear: int, dtype: DataType, layout: int, device: str) -> None:
    def reference(x: Any, w: Any, r: Any, b: Any, _: Any, h0: Any, **options: Any) -> Any:
        return gru(x, w, r, b, h0, options["direction"], linear)

    inputs = [None if n is None else layer[n] for n in ("x", "w", "r", "b", None, "h0")]
    attributes = {
        "direction": layer["direction"],
        "hidden_size": layer["r"].shape[-1],
        "linear_before_reset": linear,
    }
    case = row("GRUTraining", inputs, reference, attributes=attributes, outputs=3)
    judge(case, dtype, device, layout, exact=False, terms=sizes_for(3))


def leaves_of(layer: dict[str, Any], names: tuple[str, ...]) -> dict[str, Tensor]:
    return {n: layer[n].clone().requires_grad_() for n in names if layer.get(n) is not None}


def placed(layer: dict[str, Any], layout: int, device: str) -> dict[str, Any]:
    """The layer's tensors on the device, in other layouts."""
    return {
        name: place(value.to(device), layout + i).tensor if isinstance(value, Tensor) else value
        for i, (name, value) in enumerate(layer.items())
    }


def compare(ours: Any, names: tuple[str, ...], expected: dict[str, Tensor]) -> None:
    for name, value in zip(names, ours, strict=True):
        if name in expected:
            torch.testing.assert_close(value.cpu(), expected[name])


@given(layer=layers(4), data=st.data(), layout=layouts)
def test_lstm_grad_is_that_of_autograd(layer: Any, data: Any, layout: int, device: str) -> None:
    names = ("x", "w", "r", "b", "h0", "c0", "p")
    leaves = leaves_of(layer, names)
    outputs = lstm(*[leaves.get(n) for n in names], layer["direction"])
    dys = [data.draw(numbers(outputs[i].shape)) for i in range(3)]
    total = sum((o * dy).sum() for o, dy in zip(outputs, dys, strict=False))
    grads = torch.autograd.grad(total, list(leaves.values()))
    expected = dict(zip(leaves, grads, strict=True))
    moved = placed(layer, layout, device)
    given_ = [moved[n] for n in ("x", "w", "r", "b")]
    states = [moved[n] for n in ("h0", "c0")]
    options: Any = {"direction": layer["direction"]}
    h_all, _, _, c_all, gates = lstm_training(*given_, None, *states, moved["p"], **options)
    ours = lstm_grad(
        *given_[:3],
        None,
        *states,
        h_all,
        c_all,
        gates,
        *[dy.to(device) for dy in dys],
        moved["p"],
        wanted=(True,) * 7,
        **options,
    )
    compare(ours, names, expected)


@given(layer=layers(3), data=st.data(), linear=flags, layout=layouts)
def test_gru_grad_is_that_of_autograd(
    layer: Any, data: Any, linear: int, layout: int, device: str
) -> None:
    names = ("x", "w", "r", "b", "h0")
    leaves = leaves_of(layer, names)
    outputs = gru(*[leaves.get(n) for n in names], layer["direction"], linear)
    dys = [data.draw(numbers(outputs[i].shape)) for i in range(2)]
    total = sum((o * dy).sum() for o, dy in zip(outputs, dys, strict=False))
    grads = torch.autograd.grad(total, list(leaves.values()))
    expected = dict(zip(leaves, grads, strict=True))
    moved = placed(layer, layout, device)
    given_ = [moved[n] for n in ("x", "w", "r", "b")]
    options: Any = {"direction": layer["direction"], "linear_before_reset": linear}
    h_all, _, gates = gru_training(*given_, None, moved["h0"], **options)
    back = [dy.to(device) for dy in dys]
    ours = gru_grad(*given_, None, moved["h0"], h_all, gates, *back, wanted=(True,) * 5, **options)
    compare(ours, names, expected)


@given(layer=layers(4), data=st.data(), layout=layouts)
def test_a_sequence_of_no_steps_hands_gradients_on(
    layer: Any, data: Any, layout: int, device: str
) -> None:
    x, w, r = (layer[n].to(device) for n in ("x", "w", "r"))
    x, options = x[:0], {"direction": layer["direction"]}
    states = [data.draw(numbers((len(w), x.shape[1], r.shape[-1]))).to(device) for _ in "hc"]
    h_all, h, c, c_all, gates = lstm_training(x, w, r, None, None, *states, **options)
    assert torch.equal(h, states[0]) and torch.equal(c, states[1])
    dx, *weights, dh, dc, _ = lstm_grad(
        x, w, r, None, *states, h_all, c_all, gates, None, *states, wanted=(True,) * 7, **options
    )
    assert dx is not None and dx.shape == x.shape
    assert not any(t is None or t.any() for t in weights)
    assert torch.equal(dh, states[0]) and torch.equal(dc, states[1])
    w, r = (t[:, : 3 * r.shape[-1]] for t in (w, r))
    h_all, h, gates = gru_training(x, w, r, None, None, states[0], **options)
    dx, *weights, dh = gru_grad(
        x, w, r, None, None, states[0], h_all, gates, None, h, wanted=(True,) * 5, **options
    )
    assert dx is not None and dx.shape == x.shape
    assert not any(t is None or t.any() for t in weights)
    assert torch.equal(dh, states[0])
