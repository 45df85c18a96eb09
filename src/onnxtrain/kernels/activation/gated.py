"""An activation of one matrix times another, as the layers of many language models have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.activation.gelu import quick_slope, quick_value
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, OWN

aten = torch.ops.aten
_QUICK = 1.7020000219345093
"""1.702 as the schema stores it, in float32."""
Activation = Callable[[Tensor, float], Tensor]
Slope = Callable[[Tensor, Tensor, float], Tensor]
_VALUES: dict[str, Activation] = {
    "none": lambda x, alpha: aten.gelu.default(x),
    "tanh": lambda x, alpha: aten.gelu.default(x, approximate="tanh"),
    "quick": quick_value,
}
_GRADIENTS: dict[str, Slope] = {
    "none": lambda dy, x, alpha: aten.gelu_backward.default(dy, x),
    "tanh": lambda dy, x, alpha: aten.gelu_backward.default(dy, x, approximate="tanh"),
    "quick": quick_slope,
}


@kernel("Gated", domain=OWN, T=FLOATS)
def gated(gate: Tensor, up: Tensor, *, approximate: str = "none", alpha: float = _QUICK) -> Tensor:
    """Y = Gelu(gate)·up: exact, by ``tanh``, or ``quick``, which is gate·sigmoid(α·gate)·up."""
    _check(approximate, gate, up)
    if (rows := _rows(gate, up)) is not None and fast.ready(*rows, smallest=1, rows=True):
        found: Tensor = fast.load("gated").gated(*rows, approximate, alpha)
        return found.view(gate.shape)
    value = _VALUES[approximate]
    return blocks.apply(lambda g, u: value(widen(g), alpha) * u, gate, up, out=None)


@kernel("GatedGrad", domain=OWN, outputs=2, T=FLOATS)
def gated_grad(
    dy: Tensor, gate: Tensor, up: Tensor, *, approximate: str = "none", alpha: float = _QUICK
) -> tuple[Tensor, Tensor]:
    """dGate = dY·up·Gelu'(gate), dUp = dY·Gelu(gate)."""
    _check(approximate, gate, up, dy)
    if (
        (rows := _rows(gate, up)) is not None
        and fast.ready(*rows, smallest=1, rows=True)
        and fast.ready(dy, smallest=1)
    ):
        each: tuple[Tensor, Tensor] = fast.load("gated").gated_grad(dy, *rows, approximate, alpha)
        return each
    value, slope = _VALUES[approximate], _GRADIENTS[approximate]
    to_gate = blocks.apply(
        lambda g, d, u: slope(widen(d) * u, widen(g), alpha), gate, dy, up, out=None
    )
    return to_gate, blocks.apply(lambda g, d: value(widen(g), alpha) * d, gate, dy, out=None)


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


def _check(approximate: str, *tensors: Tensor) -> None:
    if approximate not in _VALUES:
        raise ValueError(f"approximate is {approximate!r}, allowed are {', '.join(_VALUES)}")
    shapes: list[Any] = [tuple(t.shape) for t in tensors]
    if len(set(shapes)) > 1:
        raise ValueError(f"all inputs must have one shape, not {', '.join(map(str, shapes))}")
