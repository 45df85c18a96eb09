"""In which type a kernel computes: wider than 16-bit floats, and signed where torch needs it.

torch stores uint16, uint32 and uint64 but computes little with them. Two re-readings cover the
integer operators: ``as_signed`` keeps the bits (sums, products and bit patterns are the same
modulo 2^n) and ``in_order`` keeps the order (comparisons, maxima), both without losing a value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from onnxtrain.types import INTEGERS, NUMBERS, DataType

WIDE_UNSIGNED = frozenset({DataType.UINT16, DataType.UINT32, DataType.UINT64})
"""Unsigned types that torch stores but does not compute with."""
COMPUTED = NUMBERS - WIDE_UNSIGNED
"""Numbers that torch computes with."""
COMPUTED_INTEGERS = INTEGERS - WIDE_UNSIGNED
SIGNED = frozenset({DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64})
UNSIGNED = INTEGERS - SIGNED

Grads = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Gradients of data, weight and bias; None for those that nobody wants."""

_INT64_MIN = torch.iinfo(torch.int64).min
_SAME_WIDTH = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}

_MULTIPLIES = {
    torch.bfloat16: "_is_mkldnn_bf16_supported",
    torch.float16: "_is_mkldnn_fp16_supported",
}
"""What asks torch whether a CPU multiplies a type."""


def acc(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums and chains over values of a type are computed."""
    if dtype.is_floating_point and dtype.itemsize < 4:
        return torch.float32
    return dtype


def widen(x: Tensor) -> Tensor:
    """The tensor in its type of computation (itself, if that is its own)."""
    return x.to(acc(x.dtype))


def store(value: Tensor, like: Tensor, out: Tensor | None = None) -> Tensor:
    """Round a result once to the type of ``like``, into ``out`` if there is one."""
    return value.to(like.dtype) if out is None else out.copy_(value)


def multiply(product: Callable[..., Tensor], *xs: Tensor | None, wide: bool = False) -> Tensor:
    """A product of matrices, in float32 where the processor has no instructions for its type.

    ``wide`` asks for that anyway.
    """
    first = xs[0]
    assert first is not None
    if not (wide or lacks_products(first)):
        return product(*xs)
    return store(product(*[None if x is None else widen(x) for x in xs]), first)


def multiply_back(gradients: Callable[..., Grads], *xs: Tensor, wide: bool = False) -> Grads:
    """The gradients of such a product, likewise."""
    if not (wide or lacks_products(xs[0])):
        return gradients(*xs)
    dx, dw, db = (None if d is None else store(d, xs[0]) for d in gradients(*map(widen, xs)))
    return dx, dw, db


def lacks_products(x: Tensor) -> bool:
    """Whether matrices of a tensor's type and device are multiplied element by element.

    Torch does so with 16 bits on a CPU without instructions for them. For matrices of 512 rows it
    takes 26 times as long as in float32, and sums of a convolution are rounded several times.
    """
    return x.dtype in _MULTIPLIES and x.device.type == "cpu" and not multiplies(x.dtype)


@functools.cache
def multiplies(dtype: torch.dtype) -> bool:
    """Whether the CPU has instructions for products of a 16-bit type."""
    ask = getattr(torch.ops.mkldnn, _MULTIPLIES[dtype], None)
    return torch.backends.mkldnn.is_available() and ask is not None and bool(ask())


def as_signed(x: Tensor) -> Tensor:
    """The same bits as a signed type of the same width; other types as they are."""
    return x.view(_SAME_WIDTH[x.dtype]) if x.dtype in _SAME_WIDTH else x


def in_order(x: Tensor) -> Tensor:
    """A type that torch compares, with the values in the same order."""
    if x.dtype is torch.uint64:
        return x.view(torch.int64) ^ _INT64_MIN
    return x.to(torch.int64) if x.dtype in _SAME_WIDTH else x


def from_order(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo ``in_order``."""
    if dtype is torch.uint64:
        return (x ^ _INT64_MIN).view(torch.uint64)
    return x.to(dtype)


def as_int64(x: Tensor) -> Tensor:
    """Whole numbers as int64; uint64 keeps its bits, so results are right modulo 2^64."""
    return x.view(torch.int64) if x.dtype is torch.uint64 else x.to(torch.int64)


def from_int64(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo ``as_int64``, modulo 2^n."""
    return x.view(torch.uint64) if dtype is torch.uint64 else x.to(dtype)
