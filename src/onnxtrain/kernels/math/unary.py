"""Functions of one tensor, element by element."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onnxtrain.kernels.precision import COMPUTED, SIGNED, WIDE_UNSIGNED, as_signed
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, INTEGERS, DataType

_FLOAT_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Log": torch.log,
    "Reciprocal": torch.reciprocal,
    "Round": torch.round,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
"""Operators of floating point numbers; torch's Round takes halves to the even neighbour."""


def sign(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """-1, 0 or 1; NaN, for which torch has 0, stays."""
    if not x.is_floating_point():
        return torch.sign(x, out=out)
    return torch.where(x.isnan(), x, torch.sign(x), out=out)


def _declare(op: str, function: Callable[..., Tensor], types: frozenset[DataType]) -> None:
    @kernel(op, since=6, T=types, inplace=["x"])
    def unary(x: Tensor, *, out: Tensor | None = None) -> Tensor:
        return function(x, out=out)

    unary.__name__ = op.lower()


for _op, _function in _FLOAT_FUNCTIONS.items():
    _declare(_op, _function, FLOATS)
_declare("Neg", torch.neg, FLOATS | SIGNED)
_declare("Abs", torch.abs, COMPUTED)
_declare("Sign", sign, COMPUTED)


@kernel("Abs", since=6, T=WIDE_UNSIGNED)
def abs_unsigned(x: Tensor) -> Tensor:
    """|x| = x, for there is no sign."""
    return x.clone()


@kernel("Sign", since=9, T=WIDE_UNSIGNED)
def sign_unsigned(x: Tensor) -> Tensor:
    """0 where x = 0, else 1."""
    return (as_signed(x) != 0).to(x.dtype)


@kernel("Erf", since=9, until=12, T=INTEGERS)
def erf_integers(x: Tensor) -> Tensor:
    """The error function of whole numbers, cut off to a whole number."""
    return torch.erf(x.to(torch.float64)).to(x.dtype)
