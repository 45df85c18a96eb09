"""Add, Sub, Mul, Div, Pow and Mod with broadcasting, and the gradient of Div."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onnxtrain.kernels.precision import (
    COMPUTED,
    COMPUTED_INTEGERS,
    WIDE_UNSIGNED,
    acc,
    as_int64,
    as_signed,
    from_int64,
    in_order,
    store,
    widen,
)
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, INTS, MS

_MODULAR: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
}
"""Operators whose integer results depend only on the operands' bits, signed or not."""


def _declare(op: str, function: Callable[..., Tensor]) -> None:
    @kernel(op, since=7, T=COMPUTED, inplace=["a", "b"])
    def binary(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        return function(a, b, out=out)

    @kernel(op, since=7, T=WIDE_UNSIGNED)
    def binary_unsigned(a: Tensor, b: Tensor) -> Tensor:
        result: Tensor = function(as_signed(a), as_signed(b)).view(a.dtype)
        return result

    binary.__name__ = op.lower()
    binary_unsigned.__name__ = f"{op.lower()}_unsigned"


for _op, _function in _MODULAR.items():
    _declare(_op, _function)


@kernel("Div", since=7, T=FLOATS, inplace=["a", "b"])
def div(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Y = a / b."""
    return torch.true_divide(a, b, out=out)


@kernel("Div", since=7, T=COMPUTED_INTEGERS, inplace=["a", "b"])
def div_integers(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Y = trunc(a / b)."""
    negated, divisor = _split_minus_one(b)
    quotient = torch.div(a, divisor, rounding_mode="trunc")
    if negated is not None:
        quotient = torch.where(negated, -quotient, quotient)
    return quotient if out is None else out.copy_(quotient)


def _split_minus_one(b: Tensor) -> tuple[Tensor | None, Tensor]:
    """Where b is -1, and b with 1 there: processors stop at the smallest number divided by -1."""
    if b.dtype not in (torch.int32, torch.int64):
        return None, b
    negated = b == -1
    return negated, torch.where(negated, 1, b)


@kernel("Div", since=7, T=WIDE_UNSIGNED)
def div_unsigned(a: Tensor, b: Tensor) -> Tensor:
    """Y = floor(a / b)."""
    return from_int64(_quotient(a, b), a.dtype)


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """floor(a / b) of unsigned numbers as int64 bits."""
    x, y = as_int64(a), as_int64(b)
    if a.dtype is not torch.uint64:
        return torch.div(x, y, rounding_mode="floor")
    # Halving x makes it non-negative as int64; the quotient is then too small by at most one.
    low = torch.div((x >> 1) & torch.iinfo(torch.int64).max, y, rounding_mode="trunc") << 1
    rest = (x - low * y).view(torch.uint64)
    small = low + (in_order(rest) >= in_order(b)).to(torch.int64)
    large = (in_order(a) >= in_order(b)).to(torch.int64)
    return torch.where(y < 0, large, small)


@kernel("DivGrad", domain=MS, T=FLOATS, needs=["wanted"], outputs=2)
def div_grad(
    dy: Tensor, a: Tensor, b: Tensor, *, wanted: tuple[bool, ...] = (True, True)
) -> tuple[Tensor | None, Tensor | None]:
    """dA = dY / B and dB = -dY·A / B², each summed back to the shape it was broadcast from."""
    over_b = widen(dy) / widen(b)
    want_a, want_b = (*wanted, False, False)[:2]
    da = store(over_b.sum_to_size(a.shape), a) if want_a else None
    db = store((-over_b * (widen(a) / widen(b))).sum_to_size(b.shape), b) if want_b else None
    return da, db


@kernel("Pow", since=7, T=FLOATS, inplace=["x"])
def pow_(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Z = x^y in the type of x, whatever the type of y."""
    if x.dtype is y.dtype:
        return torch.pow(x, y, out=out)
    exponent = as_int64(y) if not y.is_floating_point() else y
    return store(torch.pow(widen(x), exponent.to(_exponent_type(x, y))), x, out)


def _exponent_type(x: Tensor, y: Tensor) -> torch.dtype:
    return torch.promote_types(acc(x.dtype), y.dtype) if y.is_floating_point() else acc(x.dtype)


@kernel("Pow", since=12, T=INTS)
def pow_integers(x: Tensor, y: Tensor) -> Tensor:
    """Z = x^y, cut off to a whole number if y is not one."""
    if y.is_floating_point():
        return torch.pow(x.to(torch.float64), y.to(torch.float64)).to(x.dtype)
    return torch.pow(x.to(torch.int64), as_int64(y)).to(x.dtype)


@kernel("Mod", since=10, T=FLOATS, inplace=["a", "b"])
def mod(a: Tensor, b: Tensor, *, fmod: int = 0, out: Tensor | None = None) -> Tensor:
    """C = a - trunc(a/b)·b if fmod, else a - floor(a/b)·b, whose sign (also of 0) is that of b."""
    if fmod:
        return torch.fmod(a, b, out=out)
    rest = torch.remainder(a, b)
    return store(torch.where(rest == 0, torch.copysign(rest, b), rest), a, out)


@kernel("Mod", since=10, T=COMPUTED_INTEGERS, inplace=["a", "b"])
def mod_integers(a: Tensor, b: Tensor, *, fmod: int = 0, out: Tensor | None = None) -> Tensor:
    """C = a mod b with the sign of a if fmod, else with the sign of b."""
    _, divisor = _split_minus_one(b)
    return torch.fmod(a, divisor, out=out) if fmod else torch.remainder(a, divisor, out=out)


@kernel("Mod", since=10, T=WIDE_UNSIGNED)
def mod_unsigned(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """C = a - floor(a/b)·b; both forms agree without a sign."""
    return from_int64(as_int64(a) - _quotient(a, b) * as_int64(b), a.dtype)
