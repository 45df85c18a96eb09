"""Rows for LSTM layers that keep what a library does; their gradients get what the layers kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.nn.rnn.lstm_layer import lstm_layer
from onnxtrain.testing.autograd import pulled_back
from onnxtrain.testing.case import Case, Input, derived, normal, only
from onnxtrain.types import OWN, DataType

S, B, X, H = 4, 3, 2, 5
"""Times, samples, inputs, hidden values."""
WAYS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


def _turned(x: Tensor, reverse: bool) -> Tensor:
    return x.flip(0) if reverse else x


def _layer(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    direction: str,
) -> tuple[Tensor, Tensor, Tensor]:
    every, finals = [], []
    for d, reverse in enumerate(WAYS[direction]):
        zero = x.new_zeros(B, H)
        h, c = (zero if state is None else state[d] for state in (h0, c0))
        bias = 0.0 if b is None else b[d, : 4 * H] + b[d, 4 * H :]
        states = []
        for x_t in _turned(x, reverse):
            i, o, f, g = (x_t @ w[d].T + h @ r[d].T + bias).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        every.append(_turned(torch.stack(states), reverse))
        finals.append((h, c))
    last_h, last_c = (torch.stack(kind) for kind in zip(*finals, strict=True))
    return torch.stack(every, 1), last_h, last_c


def _made(*inputs: Tensor | None, direction: str) -> tuple[Any, ...]:
    """What a layer gives; which bytes it keeps is its own affair."""
    kept = torch.zeros(0, dtype=torch.uint8)
    return (*_layer(*inputs, direction=direction), kept, kept)  # type: ignore[arg-type]


def _grad(*inputs: Tensor | None, direction: str) -> tuple[Tensor, ...]:
    given, grads = inputs[:6], inputs[11:]
    shapes = _layer(*given, direction=direction)  # type: ignore[arg-type]
    padded = [*grads, None, None][:3]
    dys = [torch.zeros_like(y) if g is None else g for y, g in zip(shapes, padded, strict=True)]
    return pulled_back(functools.partial(_layer, direction=direction), given, dys)


def _given(direction: str) -> list[Tensor]:
    """The same inputs of a layer every time: what it kept must fit them."""
    ways, generator = len(WAYS[direction]), torch.Generator().manual_seed(0)
    shapes = [(S, B, X), (ways, 4 * H, X), (ways, 4 * H, H), (ways, 8 * H), *[(ways, B, H)] * 2]
    return [torch.randn(shape, generator=generator).mul(0.5).double() for shape in shapes]


def _fixed(tensor: Tensor) -> Input:
    return derived(lambda generator: tensor.clone())


def _kept(direction: str, output: int) -> Input:
    """One of the results of a layer in float32, and what it keeps."""

    def make(generator: torch.Generator) -> Tensor:
        found = lstm_layer(*(x.float() for x in _given(direction)), direction=direction)[output]
        return found.double() if output < 3 else found

    return Input(make, DataType.UINT8 if output >= 3 else None, grad=False)


def _case(
    op: str,
    inputs: list[Input | None],
    reference: Callable[..., Any],
    way: str,
    name: str,
    **more: Any,
) -> Case:
    return Case(op, inputs, reference, {"direction": way}, OWN, dtypes=only(DataType.FLOAT),
                gradient=False, name=f"{way}_{name}", **more)  # fmt: skip


def _drawn(way: str, count: int) -> list[Input | None]:
    return [normal(*x.shape, scale=0.5) for x in _given(way)[:count]]


_LAYERS = [
    _case("LSTMLayer", _drawn(way, count), _made, way, name, outputs=5, compare=[0, 1, 2])
    for way in WAYS
    for name, count in (("weights", 3), ("states", 6))
]
_GRADS = [
    _case(
        "LSTMLayerGrad",
        [*map(_fixed, _given(way)), *(_kept(way, output) for output in range(5)), *grads],
        _grad,
        way,
        name,
        outputs=6,
    )
    for way in WAYS
    for ways in [len(WAYS[way])]
    for name, grads in (
        ("all", [normal(S, ways, B, H), normal(ways, B, H), normal(ways, B, H)]),
        ("sequence", [normal(S, ways, B, H)]),
        ("finals", [None, normal(ways, B, H)]),
    )
]

CASES = [*_LAYERS, *_GRADS]
