"""Other element types: by value and by bits."""

from __future__ import annotations

from torch import Tensor

from onnxtrain.kernels.dtypes import from_torch, to_torch
from onnxtrain.kernels.narrow import convert
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FIXED, FLOAT8, NARROW, DataType

SAME_BITS = FIXED | FLOAT8
CASTABLE = SAME_BITS | NARROW | {DataType.FLOAT8E8M0}


@kernel("Cast", view="input", T1=CASTABLE, T2=CASTABLE)
def cast(input: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """The values in the type ``to``; a cast to the input's own type is the input itself."""
    return convert(input, DataType(to), saturate, round_mode)


@kernel("CastLike", since=15, view="input", needs=["out_types"], T1=CASTABLE, T2=CASTABLE)
def cast_like(
    input: Tensor,
    target_type: Tensor,
    *,
    saturate: int = 1,
    round_mode: str = "up",
    out_types: tuple[tuple[int, object], ...],
) -> Tensor:
    """The values of ``input`` in the type of ``target_type``."""
    dtype = out_types[0][0] or from_torch(target_type.dtype)
    return convert(input, DataType(dtype), saturate, round_mode)


@kernel("BitCast", since=26, view="input", T1=SAME_BITS, T2=SAME_BITS)
def bit_cast(input: Tensor, *, to: int) -> Tensor:
    """The same bits read as the type ``to``, which must be as wide."""
    dtype = to_torch(to)
    if dtype.itemsize != input.dtype.itemsize:
        raise ValueError(f"cannot read {input.dtype} as {dtype}: they differ in width")
    return input.view(dtype)
