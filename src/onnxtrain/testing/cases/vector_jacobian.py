"""Rows of the operator that differentiates others: here a rotation of pairs of features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, normal
from onnxtrain.types import OWN, DataType


def _pairs(x: Tensor) -> Tensor:
    """The halves of the last axis as complex numbers."""
    return torch.complex(*x.chunk(2, -1))


def _rotation(x: Tensor, cos: Tensor, sin: Tensor, dy: Tensor, **_: Any) -> tuple[Tensor, ...]:
    """y = x·a with complex numbers: dy·conj(a) for x, and Σ dy·conj(x) over the heads for a."""
    grad, angles = _pairs(dy), torch.complex(cos, sin).unsqueeze(1)
    d_x = grad * angles.conj()
    d_angles = (grad * _pairs(x).conj()).sum(1)
    return torch.cat([d_x.real, d_x.imag], -1), d_angles.real, d_angles.imag


_X, _ANGLES = normal(2, 3, 4, 6), normal(2, 4, 3)
_OPTIONS = {"of": "RotaryEmbedding", "version": 23, "taken": 3, "given": 1}
CASES: list[Case] = [
    Case(
        "VectorJacobian",
        [_X, _ANGLES, _ANGLES, _X],
        _rotation,
        _OPTIONS,
        domain=OWN,
        outputs=3,
        empty=empty,
        dtypes=frozenset({DataType.FLOAT, DataType.DOUBLE}),
        name=name,
    )
    for name, empty in (("all", []), ("caches", [0]))
]
