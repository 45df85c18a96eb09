"""Gemm: a product of rows and a weight, and a bias: x·W + b or x·Wᵀ + b in one operator."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.reading import made_by, only_reader, opset_of, pairs, rank

_BROADCASTS_SINCE = 7
"""From this opset on Gemm takes a bias without being told to repeat it."""


def match(product: ir.Node) -> Match | None:
    """A MatMul by a matrix whose result is read by the Add of a vector only."""
    x, matrix = product.inputs
    total = only_reader(product.outputs[0], "Add")
    if x is None or matrix is None or total is None or rank(matrix) != 2 or (rank(x) or 0) < 2:
        return None
    bias = _bias(total, product.outputs[0])
    if bias is None or opset_of(product) < _BROADCASTS_SINCE:
        return None
    assert matrix.shape is not None
    inner, outer = matrix.shape
    if not isinstance(inner, int) or not isinstance(outer, int):
        raise Refusal("the sizes of the weight are not known")
    if bias.shape is None or list(bias.shape) != [outer]:
        raise Refusal(f"the bias has shape {bias.shape}, the product has {outer} columns")
    turned = made_by(matrix, "Transpose")
    weight = matrix if turned is None else turned.inputs[0]
    assert weight is not None

    def emit(op: Ops) -> ir.Value:
        rows = x if rank(x) == 2 else op.Reshape(x, op.ints([-1, inner]))
        result = op.Gemm(rows, weight, bias, transB=None if turned is None else 1)
        return result if rank(x) == 2 else op.Reshape(result, _shape(op, x, outer))

    return Match((product, total), emit)


def _bias(total: ir.Node, product: ir.Value) -> ir.Value | None:
    """The vector that is added to a product."""
    return next((b for a, b in pairs(total) if a is product and rank(b) == 1), None)


def _shape(op: Ops, x: ir.Value, columns: int) -> ir.Value:
    """The shape of x with another last size: a constant if one size at most is open."""
    assert x.shape is not None
    sizes = [d if isinstance(d, int) else -1 for d in list(x.shape)[:-1]]
    if sizes.count(-1) <= 1 and 0 not in sizes:
        return op.ints([*sizes, columns])
    return op.Concat(op.slice(op.Shape(x), 0, -1), op.ints([columns]), axis=0)


PATTERN = Pattern("Gemm", frozenset({"MatMul"}), match)
