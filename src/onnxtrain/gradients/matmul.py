"""Gradients of matrix products."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.known import dim_of, moved, need_rank, operands, rank_of
from onnxtrain.gradients.rules import Grad, attribute, forwarded, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS

Flags = tuple[int, int]
"""Which of two factors are transposed."""


@gradient("MatMul")
def matmul(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dA = dY·Bᵀ, dB = Aᵀ·dY; batch dimensions that were broadcast are summed back."""
    a, b = operands(node)
    rank_a, rank_b = rank_of(a), rank_of(b)
    if rank_a == 2 and rank_b == 2:
        return [_product(op, dy, b, trans_b=1), _product(op, a, dy, trans_a=1)]
    if rank_b == 2 and rank_a != 1 and (rank_a is not None or op.opset >= 11):
        da = op.unbroadcast(op.FusedMatMul(dy, b, transB=1, _domain=MS), to=a)
        return [da, _product(op, _rows(op, a, rank_a), _rows(op, dy, rank_a), trans_a=1)]
    return [*_factors(op, a, b, dy)]


def _product(
    op: Ops, a: ir.Value, b: ir.Value, trans_a: int = 0, trans_b: int = 0, alpha: float = 1.0
) -> ir.Value:
    """α·op(A)·op(B) of two matrices; the first versions of Gemm cannot do without a C."""
    if op.opset >= 11:
        return op.Gemm(a, b, alpha=alpha, beta=0.0, transA=trans_a, transB=trans_b)
    return op.FusedMatMul(a, b, alpha=alpha, transA=trans_a, transB=trans_b, _domain=MS)


def _rows(op: Ops, x: ir.Value, rank: int | None) -> ir.Value:
    """All leading dimensions merged into one; a vector is one row."""
    last = dim_of(x, -1)
    if last:
        return op.Reshape(x, op.ints([-1, last]))
    return op.Flatten(x, axis=-1 if rank is None else rank - 1)


def _factors(
    op: Ops,
    a: ir.Value,
    b: ir.Value,
    dy: ir.Value,
    trans: Flags = (0, 0),
    alpha: float | None = None,
) -> list[ir.Value]:
    """Gradients of α·op(A)·op(B), where each may be a vector."""
    ranks = rank_of(a), rank_of(b)
    if None in ranks:
        return _of_any_rank(op, a, b, dy, trans, alpha)
    return (_with_vectors if 1 in ranks else _of_matrices)(op, a, b, dy, trans, alpha)


def _of_matrices(
    op: Ops, a: ir.Value, b: ir.Value, dy: ir.Value, trans: Flags, alpha: float | None
) -> list[ir.Value]:
    """Batch dimensions that were broadcast are summed back."""
    (trans_a, trans_b), options = trans, {"alpha": alpha, "_domain": MS}
    if trans_a:
        da = op.FusedMatMul(b, dy, transA=trans_b, transB=1, **options)
    else:
        da = op.FusedMatMul(dy, b, transB=1 - trans_b, **options)
    if trans_b:
        db = op.FusedMatMul(dy, a, transA=1, transB=trans_a, **options)
    else:
        db = op.FusedMatMul(a, dy, transA=1 - trans_a, **options)
    return [op.unbroadcast(da, to=a), op.unbroadcast(db, to=b)]


def _with_vectors(
    op: Ops, a: ir.Value, b: ir.Value, dy: ir.Value, trans: Flags, alpha: float | None
) -> list[ir.Value]:
    """A vector counts as a row on the left and as a column on the right; it is not transposed."""
    row, column = rank_of(a) == 1, rank_of(b) == 1
    if column:
        dy = op.unsqueeze(dy, [_last(op, dy)])
    if row:
        dy = op.unsqueeze(dy, [_last(op, dy) - 1])
    matrix_a = op.unsqueeze(a, [0]) if row else a
    matrix_b = op.unsqueeze(b, [1]) if column else b
    trans = 0 if row else trans[0], 0 if column else trans[1]
    da, db = _of_matrices(op, matrix_a, matrix_b, dy, trans, alpha)
    return [op.squeeze(da, [0]) if row else da, op.squeeze(db, [1]) if column else db]


def _of_any_rank(
    op: Ops, a: ir.Value, b: ir.Value, dy: ir.Value, trans: Flags, alpha: float | None
) -> list[ir.Value]:
    """Vectors are found by the run: a size of 1 is put in where their second axis would be.

    It stands where a transposition brings it to the side that it has in a vector.
    """
    one_a, one_b = _one_if_vector(op, a), _one_if_vector(op, b)
    size_a, size_b = op.shape(a), op.shape(b)
    size_a = op.Concat(*([size_a, one_a] if trans[0] else [one_a, size_a]), axis=0)
    size_b = op.Concat(*([one_b, size_b] if trans[1] else [size_b, one_b]), axis=0)
    size_y = op.Concat(op.shape(dy), one_b, axis=0)
    before, last = op.slice(size_y, 0, -1), op.slice(size_y, -1)
    matrix_a, matrix_b = op.reshape_exactly(a, size_a), op.reshape_exactly(b, size_b)
    dy = op.reshape_exactly(dy, op.Concat(before, one_a, last, axis=0))
    da, db = _of_matrices(op, matrix_a, matrix_b, dy, trans, alpha)
    return [op.reshape_like(da, a), op.reshape_like(db, b)]


def _one_if_vector(op: Ops, x: ir.Value) -> ir.Value:
    """[1] for a vector and [] for others: the first of [1, *sizes], if it is among the last two."""
    return op.slice(op.Concat(op.ints([1]), op.shape(x), axis=0), -2, 1)


def _last(op: Ops, x: ir.Value) -> int:
    """Where a new last axis goes; the first versions of Unsqueeze count from the front."""
    return -1 if op.opset >= 11 else need_rank(x, "MatMul")


@gradient("Gemm")
def gemm(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Y = α·op(A)·op(B) + β·C: dA = α·dY·op(B)ᵀ and so on; dC = β·dY summed back."""
    a, b = operands(node)[:2]
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    trans_a, trans_b = attribute(node, "transA", 0), attribute(node, "transB", 0)
    if trans_a:
        da = _product(op, b, dy, trans_b, 1, alpha)
    else:
        da = _product(op, dy, b, 0, 1 - trans_b, alpha)
    if trans_b:
        db = _product(op, dy, a, 1, trans_a, alpha)
    else:
        db = _product(op, a, dy, 1 - trans_a, 0, alpha)
    grads: list[Grad] = [da, db]
    if len(node.inputs) > 2:
        c = node.inputs[2]
        grads.append(None if c is None else _scaled(op, op.unbroadcast(dy, to=c), beta))
    return grads


def _scaled(op: Ops, x: ir.Value, factor: float) -> ir.Value:
    return x if factor == 1.0 else op.Mul(x, op.scalar(factor, x))


@gradient("FusedMatMul", domain=MS)
def fused_matmul(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Y = α·op(A)·op(B), with the last two dimensions transposed or the batch moved inwards."""
    a, b = operands(node)
    alpha = attribute(node, "alpha", 1.0)
    batch_a, batch_b = attribute(node, "transBatchA", 0), attribute(node, "transBatchB", 0)
    plain_a = _batch_outside(op, a) if batch_a else a
    plain_b = _batch_outside(op, b) if batch_b else b
    trans = attribute(node, "transA", 0), attribute(node, "transB", 0)
    da, db = _factors(op, plain_a, plain_b, dy, trans, alpha)
    return [_batch_inside(op, da) if batch_a else da, _batch_inside(op, db) if batch_b else db]


def _batch_outside(op: Ops, x: ir.Value) -> ir.Value:
    """The first dimension moved to the place before the last."""
    return moved(op, x, "b...k->...bk", "FusedMatMul with transBatch")


def _batch_inside(op: Ops, x: ir.Value) -> ir.Value:
    """The dimension before the last moved to the front."""
    return moved(op, x, "...bk->b...k", "FusedMatMul with transBatch")


@gradient("MatMulBnb4", domain=MS)
def matmul_bnb4(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dA = dY·op(B)ᵀ; that of the scales by torch, which makes the weights again for it."""
    _, quantized, scales = operands(node)
    trans_b = 1 - attribute(node, "transB", 1)
    options = {**forwarded(node, "transB"), "transB": trans_b, "_domain": MS}
    da = op.MatMulBnb4(dy, quantized, scales, **options)
    return [da, None, pulled_back(op, node, [dy])[2]]


@gradient("Det")
def det(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dy times the cofactors: determinants of what is left without a row and a column.

    They are there for singular matrices too, which torch's gradient is not made for; it is taken
    where the size of the matrices is not known.
    """
    (x,) = operands(node)
    if x.shape is None or dim_of(x, -1) is None:
        return pulled_back(op, node, [dy])
    size, rank = dim_of(x, -1), need_rank(x, "Det")
    assert size is not None
    scale = op.unsqueeze(dy, [rank - 2, rank - 1])
    if size == 1:
        return [scale]
    rest = op.const([[k for k in range(size) if k != left] for left in range(size)])
    picked = op.Gather(op.Gather(x, rest, axis=rank - 2), rest, axis=rank)
    batch = list(range(rank - 2))
    minors = op.Transpose(picked, perm=[*batch, rank - 2, rank, rank - 1, rank + 1])
    signs = op.const([[(-1) ** (i + j) for j in range(size)] for i in range(size)], x.dtype)
    return [op.Mul(scale, op.Mul(op.Det(minors), signs))]
