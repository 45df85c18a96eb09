"""Rows of products and look-ups with weights of a few bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, integers, normal, uniform
from onnxtrain.testing.cases.quantization import bytes_of
from onnxtrain.types import MS, DataType

UINT8, INT32 = DataType.UINT8, DataType.INT32


def codes(data: Tensor, bits: int) -> Any:
    """The numbers in bytes along the last axis, read bit by bit from the lowest one."""
    each = (data.to(torch.int64).unsqueeze(-1) >> torch.arange(8)) & 1
    stream = each.flatten(-2)
    count = stream.shape[-1] // bits
    numbers = stream[..., : count * bits].unflatten(-1, (count, bits))
    return (numbers << torch.arange(bits)).sum(-1)


def _nbits(
    a: Any, b: Any, scales: Any, zero: Any = None, groups: Any = None, bias: Any = None,
    *, K: int, N: int, bits: int = 4, block_size: int,
) -> Any:  # fmt: skip
    count = -(-K // block_size)
    numbers = codes(b, bits)[..., :block_size].reshape(N, -1)[:, :K].to(scales.dtype)
    if zero is None:
        zero = torch.full((N, count), 2.0 ** (bits - 1), dtype=scales.dtype)
    elif not zero.is_floating_point():
        zero = codes(zero, bits)[:, :count].to(scales.dtype)
    place = torch.arange(K) // block_size if groups is None else groups.to(torch.int64)
    w = (numbers - zero[:, place]) * scales[:, place]
    y = a @ w.t()
    return y if bias is None else y + bias


def _weights(bits: int, size: tuple[int, int], block: int = 16) -> list[Input]:
    n, k = size
    count = -(-k // block)
    return [bytes_of(n, count, block * bits // 8), uniform(n, count, low=0.1)]


def _row(bits: int, name: str, *more: Input | None, k: int = 40, rows: Any = (2,)) -> Case:
    attributes = {"K": k, "N": 3, "bits": bits, "block_size": 16}
    return Case("MatMulNBits", [normal(*rows, k), *_weights(bits, (3, k)), *more], _nbits,
                attributes, MS, name=f"{bits}-{name}")  # fmt: skip


_BIAS = normal(3)
NBITS = [
    *(_row(bits, "bits") for bits in range(2, 9)),
    _row(4, "packed-zeros", bytes_of(3, 2)),
    _row(3, "packed-zeros", bytes_of(3, 2)),
    _row(2, "packed-zeros", bytes_of(3, 1)),
    _row(4, "real-zeros", uniform(3, 3, low=4, high=9), None, _BIAS),
    _row(8, "bias", None, None, _BIAS, rows=(2, 2)),
    _row(4, "groups", None, integers(32, high=2, dtype=INT32), k=32),
]


def _grad(dy: Any, a: Any, b: Any, scales: Any, *more: Any, **attributes: Any) -> Any:
    leaves = [x.detach().clone().requires_grad_() for x in (a, scales, *more)]
    bias = dy.new_zeros(dy.shape[-1]).requires_grad_()
    with torch.enable_grad():
        y = _nbits(leaves[0], b, leaves[1], leaves[2], None, bias, **attributes)
        return torch.autograd.grad(y, [*leaves, bias], dy)


GRAD = [
    Case("MatMulNBitsGrad", [normal(2, 3), normal(2, 40), *_weights(4, (3, 40)),
                             uniform(3, 3, low=4, high=9)], _grad,
         {"K": 40, "N": 3, "block_size": 16}, MS, outputs=4, gradient=False),
]  # fmt: skip

_NF4 = [
    -1.0, -0.696192801, -0.525073051, -0.394917488, -0.284441382, -0.18477343, -0.0910500363, 0.0,
    0.0795802996, 0.160930201, 0.246112302, 0.337915242, 0.440709829, 0.562617004, 0.722956836, 1.0,
]  # fmt: skip
_FP4 = [0.0, 0.0052083335, 0.6666667, 1.0, 0.33333334, 0.5, 0.16666667, 0.25]
_TABLES = {0: [*_FP4, *(-value for value in _FP4)], 1: _NF4}


def _bnb4(
    a: Any,
    b: Any,
    absmax: Any,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    transB: int = 1,
) -> Any:
    table = torch.tensor(_TABLES[quant_type], dtype=torch.float32).to(a.dtype)
    wide = b.to(torch.int64)
    numbers = torch.stack([wide // 16, wide % 16], -1).reshape(-1)[: N * K]
    blocks = torch.arange(N * K) // block_size
    w = (table[numbers] * absmax[blocks]).reshape(N, K)
    return a @ (w.t() if transB else w)


BNB4 = [
    Case("MatMulBnb4", [normal(2, columns), bytes_of(60), uniform(8, low=0.1)], _bnb4,
         {"K": 24, "N": 5, "block_size": 16, "quant_type": kind, "transB": transposed}, MS)
    for kind in (0, 1)
    for transposed, columns in ((1, 24), (0, 5))
]  # fmt: skip


def _gathered(
    data: Any, indices: Any, scales: Any, zero: Any = None,
    *, bits: int = 4, block_size: int = 16, gather_axis: int = 0, quantize_axis: int = 1,
) -> Tensor:  # fmt: skip
    numbers = codes(data, bits)
    if zero is None:
        zero = torch.full(scales.shape, 2 ** (bits - 1))
    else:
        zero = codes(zero, bits)[..., : scales.shape[-1]]
    place = torch.arange(numbers.shape[quantize_axis]) // block_size
    factor = scales.index_select(quantize_axis, place)
    shift = zero.index_select(quantize_axis, place)
    table = (numbers - shift).to(scales.dtype) * factor
    picked = indices.to(torch.int64) % len(table)
    rows = table[picked.reshape(-1)].reshape(*indices.shape, *table.shape[1:])
    return torch.where(indices.reshape(*indices.shape, 1) < len(table), rows, 0)


def _gather(name: str, data: Input, indices: Input, *more: Input, **attributes: Any) -> Case:
    return Case("GatherBlockQuantized", [data, indices, *more], _gathered,
                {"block_size": 16, **attributes}, MS, name=name)  # fmt: skip


GATHER = [
    _gather("nibbles", bytes_of(5, 16), given([[0, 4], [-1, 2]]), uniform(5, 2, low=0.1)),
    _gather("zeros", bytes_of(5, 16), given([0, 4], INT32), uniform(5, 2, low=0.1), bytes_of(5, 1)),
    _gather("bytes", bytes_of(5, 40), given([3, 3]), uniform(5, 3, low=0.1), bits=8),
    _gather("pairs", bytes_of(5, 8), given([1, 0]), uniform(5, 2, low=0.1), bits=2),
    _gather("scalar", bytes_of(5, 16), given(2), uniform(5, 2, low=0.1)),
]

CASES: list[Case] = [*NBITS, *GRAD, *BNB4, *GATHER]
