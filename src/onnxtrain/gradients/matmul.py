"""Gradients of matrix products."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import MS


@gradient("MatMul")
def matmul(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """dA = dY·Bᵀ, dB = Aᵀ·dY; batch dimensions that were broadcast are summed back."""
    a, b = node.inputs
    rank_a, rank_b = _rank(a), _rank(b)
    if rank_a == 1 or rank_b == 1:
        return _with_vectors(op, node, dy)
    if rank_a == 2 and rank_b == 2:
        return [op.Gemm(dy, b, transB=1, beta=0.0), op.Gemm(a, dy, transA=1, beta=0.0)]
    da = op.unbroadcast(op.FusedMatMul(dy, b, transB=1, _domain=MS), to=a)
    if rank_b == 2 and rank_a is not None:
        return [da, op.Gemm(_rows(op, a), _rows(op, dy), transA=1, beta=0.0)]
    return [da, op.unbroadcast(op.FusedMatMul(a, dy, transA=1, _domain=MS), to=b)]


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _rows(op: Ops, x: ir.Value) -> ir.Value:
    """All leading dimensions merged into one."""
    last = x.shape[-1] if x.shape is not None else None
    if isinstance(last, int):
        return op.Reshape(x, op.ints([-1, last]))
    tail = op.Gather(op.Shape(x), op.ints([-1]), axis=0)
    return op.Reshape(x, op.Concat(op.ints([-1]), tail, axis=0))


def _with_vectors(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """A vector counts as a row on the left and as a column on the right."""
    a, b = node.inputs
    row, column = _rank(a) == 1, _rank(b) == 1
    if column:
        dy = op.unsqueeze(dy, [-1]) if op.opset >= 11 else op.unsqueeze(dy, [_last(dy) + 1])
    if row:
        dy = op.unsqueeze(dy, [_last(dy)])
    matrix_a = op.unsqueeze(a, [0]) if row else a
    matrix_b = op.unsqueeze(b, [1]) if column else b
    da = op.FusedMatMul(dy, matrix_b, transB=1, _domain=MS)
    db = op.FusedMatMul(matrix_a, dy, transA=1, _domain=MS)
    da, db = op.unbroadcast(da, to=matrix_a), op.unbroadcast(db, to=matrix_b)
    return [op.squeeze(da, [0]) if row else da, op.squeeze(db, [1]) if column else db]


def _last(x: ir.Value) -> int:
    """Index of the last dimension."""
    assert x.shape is not None, f"the rank of '{x.name}' is not known"
    return len(x.shape) - 1


@gradient("Gemm")
def gemm(op: Ops, node: ir.Node, dy: ir.Value) -> list[Grad]:
    """Y = α·op(A)·op(B) + β·C: dA = α·dY·op(B)ᵀ and so on; dC = β·dY summed back."""
    a, b = node.inputs[:2]
    alpha = attribute(node, "alpha", 1.0)
    beta = attribute(node, "beta", 1.0)
    trans_a, trans_b = attribute(node, "transA", 0), attribute(node, "transB", 0)
    scale = {"alpha": alpha, "beta": 0.0}
    if trans_a:
        da = op.Gemm(b, dy, transA=trans_b, transB=1, **scale)
    else:
        da = op.Gemm(dy, b, transB=1 - trans_b, **scale)
    if trans_b:
        db = op.Gemm(dy, a, transA=1, transB=trans_a, **scale)
    else:
        db = op.Gemm(a, dy, transA=1 - trans_a, **scale)
    grads: list[Grad] = [da, db]
    if len(node.inputs) > 2:
        c = node.inputs[2]
        grads.append(None if c is None else _scaled(op, op.unbroadcast(dy, to=c), beta))
    return grads


def _scaled(op: Ops, x: ir.Value, factor: float) -> ir.Value:
    return x if factor == 1.0 else op.Mul(x, op.scalar(factor, x))
