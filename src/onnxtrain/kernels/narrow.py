"""Conversion to the element types that torch lacks, or rounds otherwise than ONNX.

Whole numbers of 2 and 4 bits are kept in int8 and uint8, floating point ones of 4 and 6 bits in
float8e4m3fn: each holds all the values, so reading them needs no code of its own. Writing does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.types import FLOAT8, DataType

WHOLE = {
    DataType.INT2: (-2, 1),
    DataType.UINT2: (0, 3),
    DataType.INT4: (-8, 7),
    DataType.UINT4: (0, 15),
}
"""The smallest and the largest number of each type."""
_SMALL_FLOATS = {"FLOAT4E2M1": (1, 0, 6.0), "FLOAT6E2M3": (3, 0, 7.5), "FLOAT6E3M2": (2, -2, 28.0)}
"""Bits of the fraction, smallest exponent and largest number of each type."""
_FIRST_ABOVE_E4M3FN = 464.0
"""Larger magnitudes round to the bit pattern that float8e4m3fn keeps for NaN."""
_E8M0_NAN = 255


def convert(x: Tensor, dtype: DataType, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """The values in an ONNX element type, as Cast defines it (the input itself if it has it)."""
    if dtype in WHOLE:
        return _wrapped(x, dtype)
    if dtype.name in _SMALL_FLOATS:
        return _to_small_float(x.to(torch.float32), *_SMALL_FLOATS[dtype.name])
    if dtype == DataType.FLOAT8E8M0 and x.dtype is not to_torch(dtype):
        return _to_e8m0(x.to(torch.float32), saturate, round_mode)
    if dtype in FLOAT8 and x.dtype is not to_torch(dtype):
        return _to_float8(x.to(torch.float32), to_torch(dtype), saturate)
    return x.to(to_torch(dtype))


def _wrapped(x: Tensor, dtype: DataType) -> Tensor:
    """Whole numbers modulo 2^bits: higher bits are dropped."""
    low, high = WHOLE[dtype]
    values = x.to(torch.int64)
    return (((values - low) & (high - low)) + low).to(to_torch(dtype))


def _to_small_float(x: Tensor, fraction: int, smallest: int, largest: float) -> Tensor:
    """The nearest number of a format without infinity and NaN, which become the largest and 0."""
    x = x.nan_to_num(0.0).clamp(-largest, largest)
    exponent = torch.frexp(x).exponent - 1
    step = torch.ldexp(torch.ones_like(x), exponent.clamp(min=smallest) - fraction)
    return ((x / step).round() * step).to(torch.float8_e4m3fn)


def _to_float8(x: Tensor, dtype: torch.dtype, saturate: int) -> Tensor:
    """Too large values become the largest one (saturate), or what the format has beyond it."""
    if saturate:
        largest = torch.finfo(dtype).max
        return x.clamp(-largest, largest).to(dtype)
    if dtype is torch.float8_e4m3fn:
        x = x.masked_fill(x.abs() > _FIRST_ABOVE_E4M3FN, torch.nan)
    return x.to(dtype)


def _to_e8m0(x: Tensor, saturate: int, round_mode: str) -> Tensor:
    """A power of two: the exponent of float32, rounded by its fraction.

    Out of range are 0 and what is above 2^127: they become the smallest and the largest power
    (saturate), or NaN.
    """
    bits = x.abs().view(torch.int32)
    exponent, fraction = bits >> 23, bits & 0x7FFFFF
    if round_mode == "up":
        exponent = exponent + (fraction > 0)
    elif round_mode == "nearest":
        exponent = exponent + (fraction >= 0x400000)
    elif round_mode != "down":
        raise ValueError(f"round_mode is '{round_mode}', but it must be up, down or nearest")
    if saturate:
        exponent = exponent.clamp(max=_E8M0_NAN - 1)
    else:
        exponent = exponent.masked_fill(x == 0, _E8M0_NAN)
    exponent = exponent.masked_fill(x.isnan(), _E8M0_NAN)
    return exponent.to(torch.uint8).view(to_torch(DataType.FLOAT8E8M0))
