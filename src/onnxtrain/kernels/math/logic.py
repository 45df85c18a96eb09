"""Truth values: their operators, and comparisons with broadcasting."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onnxtrain.kernels.precision import in_order
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import BOOL, FIXED, MS, NUMBERS

_LOGICAL: dict[str, Callable[..., Tensor]] = {
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}
_COMPARISONS: dict[str, Callable[..., Tensor]] = {
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
}


def _declare_logical(op: str, function: Callable[..., Tensor]) -> None:
    @kernel(op, since=7, T=BOOL, inplace=["a", "b"])
    def logical(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        return function(a, b, out=out)

    logical.__name__ = op.lower()


def _declare_comparison(op: str, function: Callable[..., Tensor]) -> None:
    @kernel(op, since=7, T=NUMBERS)
    def comparison(a: Tensor, b: Tensor) -> Tensor:
        return function(in_order(a), in_order(b))

    comparison.__name__ = op.lower()


for _op, _function in _LOGICAL.items():
    _declare_logical(_op, _function)
for _op, _function in _COMPARISONS.items():
    _declare_comparison(_op, _function)


@kernel("Not", T=BOOL, inplace=["x"])
def not_(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Y = not x."""
    return torch.logical_not(x, out=out)


@kernel("Equal", since=7, T=FIXED)
def equal(a: Tensor, b: Tensor) -> Tensor:
    """Y = (a = b)."""
    return torch.eq(in_order(a), in_order(b))


@kernel("All", domain=MS, T=BOOL)
def all_(x: Tensor) -> Tensor:
    """Whether every element is true, as a vector of one."""
    return x.all().reshape(1)
