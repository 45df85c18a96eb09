"""Operators on the bits of whole numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onnxtrain.kernels.precision import SIGNED, UNSIGNED, as_int64, as_signed, from_int64
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import INTEGERS

_BINARY: dict[str, Callable[..., Tensor]] = {
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
}


def _declare(op: str, function: Callable[..., Tensor]) -> None:
    @kernel(op, since=18, T=INTEGERS)
    def bitwise(a: Tensor, b: Tensor) -> Tensor:
        result: Tensor = function(as_signed(a), as_signed(b)).view(a.dtype)
        return result

    bitwise.__name__ = op.lower()


for _op, _function in _BINARY.items():
    _declare(_op, _function)


@kernel("BitwiseNot", since=18, T=INTEGERS)
def bitwise_not(x: Tensor) -> Tensor:
    """Every bit flipped."""
    return torch.bitwise_not(as_signed(x)).view(x.dtype)


@kernel("BitShift", since=11, T=UNSIGNED)
def bit_shift_unsigned(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """Z = x·2^y (LEFT) or floor(x / 2^y) (RIGHT), in n bits; 0 if y is n or more."""
    width = x.dtype.itemsize * 8
    value, amount = as_int64(x), as_int64(y)
    inside = (amount >= 0) & (amount < width)
    amount = amount.clamp(0, width - 1)
    if _is_left(direction):
        shifted = value << amount
    else:
        # int64's own shift copies the sign bit, which is a plain bit of uint64.
        once = (value >> 1) & torch.iinfo(torch.int64).max
        shifted = torch.where(amount > 0, once >> (amount - 1).clamp(min=0), value)
    return from_int64(torch.where(inside, shifted, 0), x.dtype)


@kernel("BitShift", since=28, T=SIGNED)
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """Z = x·2^y (LEFT) or floor(x / 2^y) (RIGHT), in n bits; 0 or -1 if y is out of 0..n-1."""
    width = x.dtype.itemsize * 8
    value, amount = as_int64(x), as_int64(y)
    inside = (amount >= 0) & (amount < width)
    if _is_left(direction):
        return torch.where(inside, value << amount.clamp(0, width - 1), 0).to(x.dtype)
    return (value >> torch.where(inside, amount, width - 1)).to(x.dtype)


def _is_left(direction: str) -> bool:
    if direction not in ("LEFT", "RIGHT"):
        raise ValueError(f"direction is {direction!r}, allowed are LEFT and RIGHT")
    return direction == "LEFT"
