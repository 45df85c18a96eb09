"""Rows for recurrent layers: every sample walks through time alone, one gate after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, normal
from onnxtrain.testing.cases import rnn_layer, rnn_training
from onnxtrain.types import DataType

S, B, X, H = 4, 3, 2, 3
"""Times, samples, inputs, hidden values."""

Vector = Tensor
Cell = Callable[[Vector, list[Vector]], list[Vector]]
Function = Callable[[Tensor], Tensor]

_FUNCTIONS: dict[str, Callable[[float, float], Function]] = {
    "Relu": lambda a, b: torch.relu,
    "Tanh": lambda a, b: torch.tanh,
    "Sigmoid": lambda a, b: torch.sigmoid,
    "Affine": lambda a, b: lambda x: a * x + b,
    "LeakyRelu": lambda a, b: lambda x: torch.where(x >= 0, x, a * x),
    "ThresholdedRelu": lambda a, b: lambda x: torch.where(x >= a, x, torch.zeros_like(x)),
    "ScaledTanh": lambda a, b: lambda x: a * torch.tanh(b * x),
    "HardSigmoid": lambda a, b: lambda x: torch.clamp(a * x + b, 0.0, 1.0),
    "Elu": lambda a, b: lambda x: torch.where(x >= 0, x, a * torch.expm1(x)),
    "Softsign": lambda a, b: lambda x: x / (1 + x.abs()),
    "Softplus": lambda a, b: F.softplus,
}


def _functions(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Function]:
    """Rows give a parameter for every function, used or not."""
    zeros = [0.0] * len(names)
    return [
        _FUNCTIONS[name](a, b)
        for name, a, b in zip(names, alphas or zeros, betas or zeros, strict=True)
    ]


def _walk(
    x: Tensor,
    lens: Tensor | None,
    cells: list[Cell],
    starts: Sequence[Tensor | None],
    direction: str,
    layout: int,
) -> tuple[Tensor, ...]:
    """Y and the final states of all samples and directions."""
    if layout:
        x = x.transpose(0, 1)
        starts = [None if s is None else s.transpose(0, 1) for s in starts]
    steps, batch = x.shape[:2]
    rows: list[list[Tensor]] = []
    finals: list[list[list[Tensor]]] = []
    for d, cell in enumerate(cells):
        rows.append([])
        finals.append([])
        for sample in range(batch):
            length = steps if lens is None else int(lens[sample])
            states = [x.new_zeros(H) if s is None else s[d, sample] for s in starts]
            outputs = [x.new_zeros(H)] * steps
            backwards = direction == "reverse" or d == 1
            for time in reversed(range(length)) if backwards else range(length):
                states = cell(x[time, sample], states)
                outputs[time] = states[0]
            rows[d].append(torch.stack(outputs))
            finals[d].append(states)
    y = torch.stack([torch.stack(samples, 1) for samples in rows], 1)
    last = [
        torch.stack([torch.stack([sample[k] for sample in samples]) for samples in finals])
        for k in range(len(starts))
    ]
    if layout:
        return y.permute(2, 0, 1, 3), *(state.transpose(0, 1) for state in last)
    return y, *last


def _affine(rows: int, w: Tensor, r: Tensor, b: Tensor | None) -> Any:
    """For each gate: its sum of x W^T, h R^T and both biases."""
    wb, rb = (w.new_zeros(rows * H),) * 2 if b is None else b.chunk(2)

    def gate(index: int, x: Vector, h: Vector) -> tuple[Vector, Vector]:
        part = slice(index * H, (index + 1) * H)
        return w[part] @ x + wb[part], r[part] @ h + rb[part]

    return gate


def _clip(x: Tensor, clip: float | None) -> Tensor:
    return x if clip is None else x.clamp(-clip, clip)


def _rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lens: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int = H,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    names = list(activations)[: w.shape[0]]
    functions = _functions(names, activation_alpha, activation_beta)

    def cell(d: int) -> Cell:
        gate = _affine(1, w[d], r[d], None if b is None else b[d])
        return lambda x_t, states: [functions[d](_clip(sum(gate(0, x_t, states[0])), clip))]

    return _walk(x, lens, [cell(d) for d in range(w.shape[0])], [h0], direction, layout)


def _gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lens: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activations: Sequence[str] = ("Sigmoid", "Tanh") * 2,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int = H,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:
    names = list(activations)[: 2 * w.shape[0]]
    functions = _functions(names, activation_alpha, activation_beta)

    def cell(d: int) -> Cell:
        gate = _affine(3, w[d], r[d], None if b is None else b[d])
        f, g = functions[2 * d : 2 * d + 2]

        def step(x_t: Vector, states: list[Vector]) -> list[Vector]:
            [h] = states
            z, reset = (f(_clip(sum(gate(k, x_t, h)), clip)) for k in (0, 1))
            if linear_before_reset:
                own, hidden = gate(2, x_t, h)
                n = g(_clip(own + reset * hidden, clip))
            else:
                n = g(_clip(sum(gate(2, x_t, reset * h)), clip))
            return [(1 - z) * n + z * h]

        return step

    return _walk(x, lens, [cell(d) for d in range(w.shape[0])], [h0], direction, layout)


def _lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lens: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    p: Tensor | None = None,
    *,
    activations: Sequence[str] = ("Sigmoid", "Tanh", "Tanh") * 2,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int = H,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    names = list(activations)[: 3 * w.shape[0]]
    functions = _functions(names, activation_alpha, activation_beta)

    def cell(d: int) -> Cell:
        gate = _affine(4, w[d], r[d], None if b is None else b[d])
        f, g, h_function = functions[3 * d : 3 * d + 3]
        p_i, p_o, p_f = [x.new_zeros(H)] * 3 if p is None else p[d].chunk(3)

        def step(x_t: Vector, states: list[Vector]) -> list[Vector]:
            h, c = states
            i = f(_clip(sum(gate(0, x_t, h)) + p_i * c, clip))
            forget = 1 - i if input_forget else f(_clip(sum(gate(2, x_t, h)) + p_f * c, clip))
            c = forget * c + i * g(_clip(sum(gate(3, x_t, h)), clip))
            o = f(_clip(sum(gate(1, x_t, h)) + p_o * c, clip))
            return [o * h_function(c), c]

        return step

    return _walk(x, lens, [cell(d) for d in range(w.shape[0])], [h0, c0], direction, layout)


def _inputs(gates: int, states: int, options: set[str], directions: int = 1) -> list[Input | None]:
    """Inputs of a layer; ``options`` names the ones that are there."""
    state_shape = (B, directions, H) if "layout" in options else (directions, B, H)
    state = normal(*state_shape) if "state" in options else None
    lens = torch.tensor([2, S, 1], dtype=torch.int32)
    inputs = [
        normal(B, S, X) if "layout" in options else normal(S, B, X),
        normal(directions, gates * H, X, scale=0.5),
        normal(directions, gates * H, H, scale=0.5),
        normal(directions, 2 * gates * H, scale=0.5) if "bias" in options else None,
        given(lens, DataType.INT32) if "lens" in options else None,
        *[state] * states,
    ]
    if "peepholes" in options:
        inputs.append(normal(directions, 3 * H, scale=0.5))
    return inputs


_LAYERS: dict[str, tuple[Callable[..., Any], int, int, tuple[str, ...]]] = {
    "RNN": (_rnn, 1, 1, ("Tanh",)),
    "GRU": (_gru, 3, 1, ("Sigmoid", "Tanh")),
    "LSTM": (_lstm, 4, 2, ("Sigmoid", "Tanh", "Tanh")),
}


def _row(op: str, name: str, options: set[str], opset: int | None = None, **more: Any) -> Case:
    reference, gates, states, _ = _LAYERS[op]
    directions = 2 if more.get("direction") == "bidirectional" else 1
    return Case(
        op,
        _inputs(gates, states, options, directions),
        reference,
        {"hidden_size": H, **more},
        outputs=1 + states,
        opset=opset,
        name=name,
    )


_ALL = {"bias", "state", "lens"}
_COMMON = [
    row
    for op in _LAYERS
    for row in (
        _row(op, "least", set()),
        _row(op, "bias", {"bias"}),
        _row(op, "state", {"bias", "state"}, 7),
        *(
            _row(op, f"{direction}_lens", _ALL, direction=direction)
            for direction in ("forward", "reverse", "bidirectional")
        ),
        _row(op, "reverse", {"bias"}, direction="reverse"),
        _row(op, "batch_first", {*_ALL, "layout"}, layout=1),
        _row(op, "both_batch_first", {*_ALL, "layout"}, layout=1, direction="bidirectional"),
        _row(op, "clip", {"bias", "state"}, clip=0.25),
    )
]


def _activated(op: str, names: Sequence[str]) -> Case:
    """A row whose functions are all given parameters, so that each finds its own."""
    parameters = {
        "activation_alpha": [0.25 + 0.125 * k for k in range(len(names))],
        "activation_beta": [0.5 + 0.125 * k for k in range(len(names))],
    }
    taken: dict[str, Any] = {"activations": tuple(names)}
    if all(name in ("Affine", "ScaledTanh", "HardSigmoid") for name in names):
        taken.update(parameters)
    return _row(op, "_".join(names), {"bias", "state"}, **taken)


_ACTIVATED = [
    *(_activated("RNN", [name]) for name in ("Relu", "Sigmoid", "Softsign", "Softplus")),
    *(_activated("RNN", [name]) for name in ("Affine", "ScaledTanh", "HardSigmoid")),
    *(
        _row(
            "RNN",
            name,
            {"bias"},
            activations=(name,),
            activation_alpha=(0.375,),
        )
        for name in ("LeakyRelu", "ThresholdedRelu", "Elu")
    ),
    _activated("GRU", ["HardSigmoid", "ScaledTanh"]),
    _activated("GRU", ["Sigmoid", "Softsign"]),
    _activated("LSTM", ["HardSigmoid", "Affine", "ScaledTanh"]),
    _activated("LSTM", ["Sigmoid", "Softsign", "Relu"]),
]
_SPECIAL = [
    _row("LSTM", "peepholes", {"bias", "state", "peepholes"}),
    _row("LSTM", "peepholes_clip", {*_ALL, "peepholes"}, direction="bidirectional", clip=0.5),
    _row("LSTM", "input_forget", {"bias", "state"}, input_forget=1),
    _row("GRU", "linear_before_reset", {*_ALL}, linear_before_reset=1),
    _row("GRU", "linear_no_bias", {"state"}, linear_before_reset=1, direction="bidirectional"),
]

CASES = [*_COMMON, *_ACTIVATED, *_SPECIAL, *rnn_training.CASES, *rnn_layer.CASES]
