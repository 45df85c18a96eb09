"""Rows for products of matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, integers, normal, only
from onnxtrain.testing.cases.math.elementwise import OLD_FLOATS
from onnxtrain.testing.cases.math.integers import WIDE, huge, whole
from onnxtrain.types import INTEGERS, MS, DataType

_SHAPES = {
    "matrix": ((3, 4), (4, 5)),
    "batch": ((2, 3, 4), (2, 4, 5)),
    "batch-matrix": ((2, 3, 4), (4, 5)),
    "matrix-batch": ((3, 4), (2, 4, 5)),
    "broadcast": ((2, 1, 3, 4), (5, 4, 2)),
    "vector-matrix": ((4,), (4, 5)),
    "matrix-vector": ((3, 4), (4,)),
    "vectors": ((4,), (4,)),
    "batch-vector": ((2, 3, 4), (4,)),
    "vector-batch": ((4,), (2, 4, 3)),
    "empty": ((0, 4), (4, 5)),
}
_MATMUL = [
    Case("MatMul", [normal(*a), normal(*b)], torch.matmul, name=name)
    for name, (a, b) in _SHAPES.items()
]
_MATMUL += [
    Case("MatMul", [normal(16, 300), normal(300, 8)], torch.matmul, name="deep"),
    Case("MatMul", [normal(3, 4), normal(4, 2)], torch.matmul, opset=7, dtypes=OLD_FLOATS),
    *(
        Case(
            "MatMul",
            [whole(*a, high=9), whole(*b, high=9)],
            dtypes=WIDE,
            name=f"integers-{name}",
            gradient=False,
        )
        for name, (a, b) in _SHAPES.items()
        if name in ("matrix", "broadcast", "vectors")
    ),
    Case(
        "MatMul",
        [huge(2**63 + 3, 2**64 - 1, 17), huge(2**63 + 1, 5, 2**40)],
        dtypes=only(DataType.UINT64),
        name="huge",
        gradient=False,
    ),
    Case(
        "MatMul",
        [given([[-7, 2**40], [3, -(2**62)]]), given([[2**50, -5], [-(2**33), 11]])],
        dtypes=only(DataType.INT64),
        name="wide-int64",
        gradient=False,
    ),
]


def _fused(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    a = a.movedim(0, a.ndim - 2) if transBatchA else a
    b = b.movedim(0, b.ndim - 2) if transBatchB else b
    a = a.transpose(-1, -2) if transA else a
    b = b.transpose(-1, -2) if transB else b
    return torch.matmul(a, b) * alpha


def _fused_row(a: tuple[int, ...], b: tuple[int, ...], name: str = "", **attributes: Any) -> Case:
    return Case(
        "FusedMatMul",
        [normal(*a), normal(*b)],
        _fused,
        attributes,
        domain=MS,
        name=name,
        gradient=False,
    )


_FUSED = [
    _fused_row((3, 4), (4, 5), "plain"),
    _fused_row((4, 3), (4, 5), transA=1),
    _fused_row((3, 4), (5, 4), transB=1, alpha=0.375),
    _fused_row((2, 4, 3), (2, 5, 4), transA=1, transB=1, alpha=-1.25),
    _fused_row((2, 3, 4), (4, 5), alpha=0.375),
    _fused_row((2, 1, 3, 4), (5, 4, 2), alpha=0.375, name="broadcast"),
    _fused_row((4,), (4, 5), alpha=0.375, name="vector-matrix"),
    _fused_row((2, 3, 4), (4,), alpha=0.375, name="batch-vector"),
    _fused_row((4,), (4,), alpha=0.375, name="vectors"),
    _fused_row((3, 2, 5, 4), (2, 5, 4, 6), transBatchA=1),
    _fused_row((4, 2, 5, 3), (2, 5, 4, 6), transBatchA=1, transA=1, alpha=0.375),
    _fused_row((2, 5, 3, 4), (4, 2, 5, 6), transBatchB=1),
    _fused_row((2, 5, 3, 4), (6, 2, 5, 4), transBatchB=1, transB=1),
    Case(
        "FusedMatMul",
        [given([[300.0, 300.0]]), given([[300.0], [300.0]])],
        _fused,
        {"alpha": 0.125},
        domain=MS,
        name="scaled-before-rounding",
        gradient=False,
    ),
]


def _gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    product = alpha * torch.matmul(a.t() if transA else a, b.t() if transB else b)
    return product if c is None else product + beta * c


def _gemm_row(name: str, c: Input | None, **options: Any) -> Case:
    return Case("Gemm", [normal(3, 4), normal(4, 5), c], _gemm, name=name, **options)


_GEMM = [
    _gemm_row("matrix", normal(3, 5)),
    _gemm_row("row", normal(5)),
    _gemm_row("row-matrix", normal(1, 5)),
    _gemm_row("column", normal(3, 1)),
    _gemm_row("scalar", normal()),
    _gemm_row("one", normal(1)),
    Case("Gemm", [normal(3, 4), normal(4, 5)], _gemm, name="without-c"),
    Case("Gemm", [normal(3, 4), normal(4, 5)], _gemm, {"alpha": 0.375}, name="alpha-without-c"),
    Case("Gemm", [normal(0, 4), normal(4, 5), normal(5)], _gemm, name="empty"),
    Case("Gemm", [normal(3, 0), normal(0, 5)], _gemm, {"alpha": 0.375}, name="empty-inner"),
    _gemm_row("alpha", normal(5), attributes={"alpha": 0.375, "beta": -1.5}),
    _gemm_row("beta0", normal(5), attributes={"beta": 0.0}, gradient=False),
    *(
        Case(
            "Gemm",
            [normal(*((4, 3) if a else (3, 4))), normal(*((5, 4) if b else (4, 5))), normal(5)],
            _gemm,
            {"transA": a, "transB": b, "alpha": 0.5},
        )
        for a in (0, 1)
        for b in (0, 1)
    ),
    *(_gemm_row("row", normal(5), opset=opset, dtypes=OLD_FLOATS) for opset in (7, 9, 11)),
    *(
        Case(
            "Gemm",
            [whole(3, 4, high=9), whole(4, 5, high=9), whole(5, high=9)],
            attributes=attributes,
            dtypes=WIDE,
            gradient=False,
            name=f"integers{len(attributes)}",
        )
        for attributes in ({}, {"alpha": 2.0}, {"alpha": 0.5, "beta": 0.5})
    ),
]


def _integer_row(name: str, a_zero: list[int] | int | None, b_zero: list[int] | int | None) -> Case:
    def zero(value: list[int] | int | None, dtype: DataType) -> Input | None:
        return None if value is None else given(value, dtype)

    return Case(
        "MatMulInteger",
        [
            integers(3, 4, high=256, dtype=DataType.UINT8),
            integers(4, 2, low=-128, high=128, dtype=DataType.INT8),
            zero(a_zero, DataType.UINT8),
            zero(b_zero, DataType.INT8),
        ],
        _matmul_integer,
        dtypes=only(DataType.UINT8),
        name=name,
        gradient=False,
    )


def _matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    left, right = a.to(torch.int64), b.to(torch.int64)
    if a_zero is not None:
        left = left - a_zero.to(torch.int64).reshape(-1, 1)
    if b_zero is not None:
        right = right - b_zero.to(torch.int64).reshape(1, -1)
    return (left @ right).to(torch.int32)


_MATMUL_INTEGER = [
    _integer_row("plain", None, None),
    _integer_row("scalars", 12, -3),
    _integer_row("only-a", 12, None),
    _integer_row("only-b", None, -3),
    _integer_row("vectors", [12, 0, 255], [-3, 100]),
]


def _einsum(*xs: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *xs)


_EQUATIONS: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    ("ij,jk->ik", ((3, 4), (4, 5))),
    ("ij, jk", ((3, 4), (4, 5))),
    ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
    ("bhid,bhjd->bhij", ((2, 2, 3, 4), (2, 2, 5, 4))),
    ("...ij,...jk->...ik", ((2, 3, 4), (2, 4, 5))),
    ("ij->ji", ((3, 4),)),
    ("ij->", ((3, 4),)),
    ("ii->i", ((3, 3),)),
    ("i,i->", ((4,), (4,))),
    ("i,j->ij", ((3,), (4,))),
    ("ij,jk,kl->il", ((3, 4), (4, 5), (5, 2))),
]
_STRETCHED: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    ("ij,jk->ik", ((2, 1), (5, 3))),
    ("ij,jk->ki", ((2, 5), (1, 3))),
    ("ij, jk", ((2, 1), (5, 3))),
    ("bij,bjk->bik", ((1, 2, 3), (4, 3, 2))),
    ("ij,ij->ij", ((2, 1), (1, 3))),
    ("ij,ij->j", ((2, 1), (2, 3))),
    ("ij,i->i", ((1, 4), (3,))),
    ("i,i,i->", ((1,), (4,), (1,))),
    ("ii,i->i", ((1, 1), (3,))),
    ("ii,i->", ((1, 1), (3,))),
    ("ij,jk,kl->il", ((2, 1), (5, 1), (4, 3))),
    ("...ij,...jk->...ik", ((1, 2, 3), (4, 3, 2))),
    ("...ij,...jk", ((2, 3), (4, 1, 2))),
    ("i...j,...jk->i...k", ((2, 1, 4), (2, 3, 1, 2))),
    ("j...,jk->...k", ((1, 2, 3), (4, 2))),
    ("...ii,i...->...", ((2, 3, 3), (1, 4, 1))),
]
"""Axes that are 1 in one operand and more in another."""
_EINSUM = [
    Case("Einsum", [normal(*shape) for shape in shapes], _einsum, {"equation": equation})
    for equation, shapes in _EQUATIONS
]
_EINSUM += [
    Case(
        "Einsum",
        [normal(*shape) for shape in shapes],
        _einsum,
        {"equation": equation},
        name=f"stretched-{equation}",
    )
    for equation, shapes in _STRETCHED
]
_EINSUM += [
    Case(
        "Einsum",
        [whole(*shape, high=4) for shape in shapes],
        lambda *xs, equation: torch.einsum(equation, *(x.to(torch.int64) for x in xs)),
        {"equation": equation},
        dtypes=INTEGERS,
        name=f"{prefix}-{equation}",
        gradient=False,
    )
    for prefix, rows in (("integers", _EQUATIONS), ("stretched-integers", _STRETCHED))
    for equation, shapes in rows
]
_DET = [
    Case("Det", [normal(3, 3)], torch.linalg.det),
    Case("Det", [normal(2, 4, 4)], torch.linalg.det, name="batch"),
    Case("Det", [normal(2, 2)], torch.linalg.det, opset=11, dtypes=OLD_FLOATS),
]

CASES: list[Case] = [*_MATMUL, *_FUSED, *_GEMM, *_MATMUL_INTEGER, *_EINSUM, *_DET]
