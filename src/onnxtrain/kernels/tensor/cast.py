"""Other element types: by value and by bits."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.precision import FLOAT8
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FIXED

CASTABLE = FIXED | FLOAT8
_FLOAT8 = frozenset(to_torch(dtype) for dtype in FLOAT8)
_FIRST_ABOVE_E4M3FN = 464.0
"""Larger magnitudes round to the bit pattern that float8e4m3fn keeps for NaN."""


@kernel("Cast", view="input", T1=CASTABLE, T2=CASTABLE)
def cast(input: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """The values in the type ``to``; a cast to the input's own type is the input itself."""
    return _cast(input, to_torch(to), saturate)


@kernel("CastLike", since=15, view="input", T1=CASTABLE, T2=CASTABLE)
def cast_like(
    input: Tensor, target_type: Tensor, *, saturate: int = 1, round_mode: str = "up"
) -> Tensor:
    """The values of ``input`` in the type of ``target_type``."""
    return _cast(input, target_type.dtype, saturate)


def _cast(x: Tensor, dtype: torch.dtype, saturate: int) -> Tensor:
    if dtype in _FLOAT8 and x.dtype is not dtype:
        return _to_float8(x.to(torch.float32), dtype, saturate)
    return x.to(dtype)


def _to_float8(x: Tensor, dtype: torch.dtype, saturate: int) -> Tensor:
    """Too large values become the largest one (saturate), or what the format has beyond it."""
    if saturate:
        largest = torch.finfo(dtype).max
        return x.clamp(-largest, largest).to(dtype)
    if dtype is torch.float8_e4m3fn:
        x = x.masked_fill(x.abs() > _FIRST_ABOVE_E4M3FN, torch.nan)
    return x.to(dtype)


@kernel("BitCast", since=26, view="input", T1=CASTABLE, T2=CASTABLE)
def bit_cast(input: Tensor, *, to: int) -> Tensor:
    """The same bits read as the type ``to``, which must be as wide."""
    dtype = to_torch(to)
    if dtype.itemsize != input.dtype.itemsize:
        raise ValueError(f"cannot read {input.dtype} as {dtype}: they differ in width")
    return input.view(dtype)
