"""Products of matrices: MatMul, Gemm, FusedMatMul, MatMulInteger, and the determinant."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxtrain.kernels.precision import as_int64, from_int64, lacks_products, multiply, store, widen
from onnxtrain.kernels.products import of_rows, product, product_added, serves
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, INTEGERS, MS, DataType

_GEMM_INTEGERS = INTEGERS - {DataType.INT8, DataType.INT16, DataType.UINT8, DataType.UINT16}
_BYTES = frozenset({DataType.INT8, DataType.UINT8})


@kernel("MatMul", T=FLOATS)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Y = a·b over the last two axes, with numpy's rules for vectors and batches."""
    return multiply(_product, a, b)


@kernel("MatMul", since=9, T=_GEMM_INTEGERS)
def matmul_integers(a: Tensor, b: Tensor) -> Tensor:
    """Y = a·b, modulo 2^n."""
    digits = a.dtype.itemsize // 2
    return from_int64(_integer_product(as_int64(a), as_int64(b), digits), a.dtype)


def _integer_product(a: Tensor, b: Tensor, digits: int) -> Tensor:
    """a·b of int64 modulo 2^(16·digits), from products of 16-bit digits.

    Each is exact in float64 (for inner sizes up to 2^21), which torch multiplies on every device.
    """
    left, right = ([_digit(x, i) for i in range(digits)] for x in (a, b))
    terms = [
        torch.matmul(left[i], right[j]).to(torch.int64) << (16 * (i + j))
        for i in range(digits)
        for j in range(digits - i)
    ]
    return torch.stack(terms).sum(0)


def _digit(x: Tensor, index: int) -> Tensor:
    return ((x >> (16 * index)) & 0xFFFF).to(torch.float64)


@kernel("FusedMatMul", domain=MS, T=FLOATS)
def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    """Y = α·a'·b', where a' and b' may have their first axis moved inwards and be transposed."""
    return _scaled_product(
        _transposed(a, bool(transA), bool(transBatchA)),
        _transposed(b, bool(transB), bool(transBatchB)),
        alpha,
    )


_ALIGNED = 8
"""Rows of 16-bit elements that begin at multiples of so many are read by the fastest kernels."""
_WORTH = 1 << 22
"""Elements of a product above which that matters."""


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a·b; rows of a large 16-bit product on a GPU begin at aligned places."""
    if b.ndim != 2 or a.ndim < 2:
        return torch.matmul(a, b)
    if not a.is_cuda:
        return of_rows(a, b)
    flat = a.flatten(0, -2)
    out = _room(flat, b)
    if out is None:
        return torch.matmul(a, b)
    torch.mm(flat, b, out=out)
    result: Tensor = out.unflatten(0, a.shape[:-1])
    return result


def _room(a: Tensor, b: Tensor) -> Tensor | None:
    """Where to put a product whose rows would begin anywhere otherwise; None if that is fine.

    A vocabulary of 50,257 words takes five times as long without.
    """
    rows, columns = a.shape[0], b.shape[1]
    wide = -columns % _ALIGNED + columns
    if not a.is_cuda or a.dtype.itemsize != 2 or wide == columns or rows * columns < _WORTH:
        return None
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return None
    return a.new_empty(rows, wide)[:, :columns]


def _transposed(x: Tensor, matrix: bool, batch: bool) -> Tensor:
    if batch:
        x = x.movedim(0, -2)
    return x.mT if matrix and x.ndim > 1 else x


def _scaled_product(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """α·a·b with α applied before the product is rounded (a 16-bit product may overflow)."""
    if lacks_products(a):
        return store(_scaled_product(widen(a), widen(b), alpha), a)
    if alpha == 1:
        return _product(a, b)
    left = a.unsqueeze(0) if a.ndim == 1 else a
    right = b.unsqueeze(1) if b.ndim == 1 else b
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    count, (rows, inner), columns = math.prod(batch), left.shape[-2:], right.shape[-1]
    result = torch.baddbmm(
        a.new_zeros(()),
        left.expand(*batch, rows, inner).reshape(count, rows, inner),
        right.expand(*batch, inner, columns).reshape(count, inner, columns),
        beta=0,
        alpha=alpha,
    ).reshape(*batch, rows, columns)
    if b.ndim == 1:
        result = result.squeeze(-1)
    return result.squeeze(-2 if b.ndim > 1 else -1) if a.ndim == 1 else result


@kernel("Gemm", since=7, T=FLOATS, inplace=["c"])
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Y = α·a'·b' + β·c, with c broadcast."""
    left, right = a.t() if transA else a, b.t() if transB else b
    if lacks_products(a):
        added = None if c is None else widen(c)
        return store(gemm(widen(left), widen(right), added, alpha=alpha, beta=beta), a, out)
    if alpha == 1 and beta == 1 and c is not None and serves(left, right, c):
        return _added(left, right, c, out)
    if out is not None:
        return out.addmm_(left, right, beta=beta, alpha=alpha)
    if c is None:
        return _scaled_product(left, right, alpha)
    return torch.addmm(c, left, right, beta=beta, alpha=alpha, out=_room(left, right))


def _added(a: Tensor, b: Tensor, c: Tensor, out: Tensor | None) -> Tensor:
    """a·b + c by oneDNN, with c broadcast."""
    if out is not None:
        return out.add_(product(a, b))
    if c.numel() == b.shape[1] and c.shape[-1:] == b.shape[1:]:
        return product(a, b, c)
    return product_added(a, b, c) if c.shape == (len(a), b.shape[1]) else product(a, b).add_(c)


@kernel("Gemm", since=9, T=_GEMM_INTEGERS)
def gemm_integers(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """Y = α·a'·b' + β·c, cut off to whole numbers if α or β is not one."""
    left, right = (as_int64(a.t() if transA else a), as_int64(b.t() if transB else b))
    product = _integer_product(left, right, 4)
    addend = None if c is None else as_int64(c)
    if alpha == int(alpha) and beta == int(beta):
        total = product * int(alpha) + (0 if addend is None else addend * int(beta))
    else:
        total = product.to(torch.float64) * alpha + (0 if addend is None else addend * beta)
    return from_int64(total.to(torch.int64), a.dtype)


@kernel("MatMulInteger", since=10, T1=_BYTES, T2=_BYTES)
def matmul_integer(
    a: Tensor, b: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    """Y = (a - a₀)·(b - b₀) in int32; the zero points are single, per row of a, per column of b."""
    left = a.to(torch.float64)
    right = b.to(torch.float64)
    if a_zero_point is not None:
        rows = a_zero_point.to(torch.float64)
        left = left - (rows.unsqueeze(-1) if rows.ndim == 1 and rows.numel() > 1 else rows)
    if b_zero_point is not None:
        right = right - b_zero_point.to(torch.float64)
    return torch.matmul(left, right).to(torch.int64).to(torch.int32)


@kernel("Det", since=11, T=FLOATS)
def det(x: Tensor) -> Tensor:
    """Y = det(x) over the last two axes."""
    return store(torch.linalg.det(widen(x)), x)
