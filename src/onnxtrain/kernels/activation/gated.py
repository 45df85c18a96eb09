"""An activation of one matrix times another, as the layers of many language models have it.

Both may be the halves of one matrix, which then has one gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.activation.gelu import quick_slope, quick_value
from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, OWN

aten = torch.ops.aten
_QUICK = 1.7020000219345093
"""1.702 as the schema stores it, in float32."""
Activation = Callable[[Tensor, float], Tensor]
Slope = Callable[[Tensor, Tensor, float], Tensor]
_VALUES: dict[str, Activation] = {
    "gelu": lambda x, alpha: aten.gelu.default(x),
    "gelu_tanh": lambda x, alpha: aten.gelu.default(x, approximate="tanh"),
    "swish": quick_value,
    "sigmoid": lambda x, alpha: torch.sigmoid(x),
    "relu": lambda x, alpha: torch.relu(x),
}
_GRADIENTS: dict[str, Slope] = {
    "gelu": lambda dy, x, alpha: aten.gelu_backward.default(dy, x),
    "gelu_tanh": lambda dy, x, alpha: aten.gelu_backward.default(dy, x, approximate="tanh"),
    "swish": quick_slope,
    "sigmoid": lambda dy, x, alpha: aten.sigmoid_backward.default(dy, torch.sigmoid(x)),
    "relu": lambda dy, x, alpha: torch.where(x > 0, dy, 0),
}


@kernel("Gated", domain=OWN, T=FLOATS)
def gated(gate: Tensor, up: Tensor, *, activation: str = "gelu", alpha: float = _QUICK) -> Tensor:
    """Y = act(gate)·up; ``gelu_tanh`` is Gelu's approximation, ``swish`` is x·sigmoid(α·x)."""
    _check(activation, gate, up)
    if (rows := _rows(gate, up)) is not None and fast.ready(*rows, smallest=1, rows=True):
        found: Tensor = fast.load("gated").gated(*rows, activation, alpha)
        return found.view(gate.shape)
    return blocks.apply(lambda g, u: _value(g, u, activation, alpha), gate, up, out=None)


@kernel("GatedGrad", domain=OWN, outputs=2, T=FLOATS)
def gated_grad(
    dy: Tensor, gate: Tensor, up: Tensor, *, activation: str = "gelu", alpha: float = _QUICK
) -> tuple[Tensor, Tensor]:
    """dGate = dY·up·act'(gate), dUp = dY·act(gate)."""
    _check(activation, gate, up, dy)
    if (
        (rows := _rows(dy, gate, up)) is not None
        and fast.ready(*rows, smallest=1, rows=True)
        and dy.is_contiguous()
    ):
        each: tuple[Tensor, Tensor] = fast.load("gated").gated_grad(*rows, activation, alpha)
        return each[0].view(dy.shape), each[1].view(dy.shape)
    slope = _GRADIENTS[activation]
    to_gate = blocks.apply(
        lambda g, d, u: slope(widen(d) * u, widen(g), alpha), gate, dy, up, out=None
    )
    to_up = blocks.apply(lambda g, d: _value(g, d, activation, alpha), gate, dy, out=None)
    return to_gate, to_up


@kernel("GatedHalves", domain=OWN, T=FLOATS)
def gated_halves(
    x: Tensor, *, axis: int = -1, gate: int = 0, activation: str = "gelu", alpha: float = _QUICK
) -> Tensor:
    """Y = act(x[gate])·x[1 - gate] for the halves of x along an axis."""
    _check(activation)
    shape = _half_shape(x, axis)
    rows = _rows_of_halves(x, axis)
    if rows is not None and fast.ready(rows, smallest=1):
        found: Tensor = fast.load("gated").gated(*_sides(rows, gate), activation, alpha)
        return found.view(shape)
    if rows is None or not blocks.ready(rows):
        return store(_value(*_sides(x, gate, axis), activation, alpha), x)
    y = torch.empty(shape, dtype=x.dtype)
    for both, target in blocks.rows(len(rows), rows, y):
        target.copy_(_value(*_sides(both, gate), activation, alpha))
    return y


@kernel("GatedHalvesGrad", domain=OWN, T=FLOATS, inplace=["x"])
def gated_halves_grad(
    dy: Tensor,
    x: Tensor,
    *,
    axis: int = -1,
    gate: int = 0,
    activation: str = "gelu",
    alpha: float = _QUICK,
    out: Tensor | None = None,
) -> Tensor:
    """dX, whose halves are the gradients of those of x: dY·up·act'(gate) and dY·act(gate)."""
    _check(activation)
    if dy.shape != _half_shape(x, axis):
        raise ValueError(f"dY has shape {tuple(dy.shape)}, X has {tuple(x.shape)}, not its double")
    if blocks.recorded(dy, x):
        each = _both_slopes(dy, *_sides(x, gate, axis), activation, alpha)
        return store(torch.cat(each[::-1] if gate else each, axis), x, out)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    rows, to = _rows_of_halves(x, axis), _rows_of_halves(dx, axis)
    if rows is None or to is None or not dy.is_contiguous():
        _write_slopes(dx, dy, x, axis, gate, activation, alpha)
        return dx
    above = dy.view(len(rows), -1)
    if fast.ready(rows, above, smallest=1):
        given = above, *_sides(rows, gate), activation, alpha
        fast.load("gated").gated_grad(*given, into=_sides(to, gate))
        return dx
    many = blocks.ready(rows)
    for part in blocks.rows(len(rows), rows, to, above) if many else [(rows, to, above)]:
        _write_slopes(part[1], part[2], part[0], -1, gate, activation, alpha)
    return dx


def _write_slopes(
    dx: Tensor, dy: Tensor, x: Tensor, axis: int, gate: int, activation: str, alpha: float
) -> None:
    """Both are computed before one is written, where x may be."""
    each = _both_slopes(dy, *_sides(x, gate, axis), activation, alpha)
    for target, value in zip(_sides(dx, gate, axis), each, strict=True):
        target.copy_(value)


def _value(gate: Tensor, up: Tensor, activation: str, alpha: float) -> Tensor:
    return _VALUES[activation](widen(gate), alpha) * up


def _both_slopes(
    dy: Tensor, gate: Tensor, up: Tensor, activation: str, alpha: float
) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up in the type of computation."""
    to_gate = _GRADIENTS[activation](widen(dy) * up, widen(gate), alpha)
    return to_gate, _value(gate, dy, activation, alpha)


def _sides(x: Tensor, gate: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """Gate and up, the halves along an axis."""
    first, second = x.chunk(2, axis)
    return (second, first) if gate else (first, second)


def _rows_of_halves(x: Tensor, axis: int) -> Tensor | None:
    """A matrix of which each row has one half behind the other, None if that takes a copy."""
    if not x.numel() or not x.is_contiguous():
        return None
    axis %= x.ndim
    return x.view(-1, x.shape[axis:].numel())


def _half_shape(x: Tensor, axis: int) -> tuple[int, ...]:
    """The shape of a half."""
    if not -x.ndim <= axis < x.ndim or x.shape[axis] % 2:
        raise ValueError(f"axis {axis} of X has no halves: its shape is {tuple(x.shape)}")
    shape = list(x.shape)
    shape[axis] //= 2
    return tuple(shape)


def _rows(*tensors: Tensor) -> list[Tensor] | None:
    """Tensors as matrices without a copy, None if that cannot be."""
    found: list[Tensor] = []
    for t in tensors:
        if t.ndim < 1 or not t.numel():
            return None
        try:
            found.append(t.view(-1, t.shape[-1]))
        except RuntimeError:
            return None
    return found


def _check(activation: str, *tensors: Tensor) -> None:
    if activation not in _VALUES:
        raise ValueError(f"activation is {activation!r}, allowed are {', '.join(_VALUES)}")
    shapes: list[Any] = [tuple(t.shape) for t in tensors]
    if len(set(shapes)) > 1:
        raise ValueError(f"all inputs must have one shape, not {', '.join(map(str, shapes))}")
