"""Rows for products with an activation, of two tensors and of the halves of one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.testing.case import Case, apart, normal
from onnxtrain.types import FLOATS, OWN

_QUICK = 1.7020000219345093


def _act(x: Tensor, activation: str, alpha: float) -> Tensor:
    if activation == "swish":
        return x * torch.sigmoid(alpha * x)
    if activation in ("sigmoid", "relu"):
        return torch.sigmoid(x) if activation == "sigmoid" else torch.where(x > 0, x, 0)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def _gated(gate: Tensor, up: Tensor, *, activation: str = "gelu", alpha: float = _QUICK) -> Tensor:
    return _act(gate, activation, alpha) * up


def _gated_grad(dy: Tensor, gate: Tensor, up: Tensor, **given: Any) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        both = [t if t.requires_grad else t.detach().requires_grad_() for t in (gate, up)]
        return torch.autograd.grad(_gated(*both, **given), both, dy, create_graph=True)


def _halves(x: Tensor, *, axis: int = -1, gate: int = 0, **given: Any) -> Tensor:
    size = x.shape[axis] // 2
    parts = [x.narrow(axis, start, size) for start in (0, size)]
    return _gated(parts[gate], parts[1 - gate], **given)


def _halves_grad(dy: Tensor, x: Tensor, **given: Any) -> Tensor:
    with torch.enable_grad():
        x = x if x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad(_halves(x, **given), x, dy, create_graph=True)[0]


_PAIRS = [
    Case(op, [apart(*shape) if "relu" in name else normal(*shape)] * count, reference, attributes,
         domain=OWN, outputs=outputs, dtypes=FLOATS, name=name)
    for op, count, reference, outputs in (("Gated", 2, _gated, 1), ("GatedGrad", 3, _gated_grad, 2))
    for name, shape, attributes in (
        ("gelu", (4, 5), {}),
        ("tanh", (2, 3, 5), {"activation": "gelu_tanh"}),
        ("silu", (4, 5), {"activation": "swish", "alpha": 1.0}),
        ("quick", (7,), {"activation": "swish"}),
        ("sigmoid", (2, 3, 5), {"activation": "sigmoid"}),
        ("relu", (3, 4), {"activation": "relu"}),
        ("scalar", (), {"activation": "gelu_tanh"}),
        ("empty", (0, 3), {}),
    )
]  # fmt: skip
_HALVES: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("gelu", (3, 5), (3, 10), {}),
    ("tanh", (2, 3, 4), (2, 3, 8), {"activation": "gelu_tanh", "gate": 1}),
    ("silu", (4, 5), (4, 10), {"activation": "swish", "alpha": 1.0}),
    ("quick", (7,), (14,), {"activation": "swish", "axis": 0}),
    ("glu", (2, 3, 5), (2, 6, 5), {"activation": "sigmoid", "gate": 1, "axis": 1}),
    ("first", (3, 2), (6, 2), {"activation": "sigmoid", "axis": -2}),
    ("relu", (3, 4), (3, 8), {"activation": "relu"}),
    ("empty", (0, 3), (0, 6), {"activation": "relu", "gate": 1}),
]
_OF_HALVES = [
    Case(op, inputs, reference, attributes, domain=OWN, dtypes=FLOATS, name=name)
    for name, half, whole, attributes in _HALVES
    for x in [apart(*whole) if attributes.get("activation") == "relu" else normal(*whole)]
    for op, inputs, reference in (
        ("GatedHalves", [x], _halves),
        ("GatedHalvesGrad", [normal(*half), x], _halves_grad),
    )
]
CASES = [*_PAIRS, *_OF_HALVES]
