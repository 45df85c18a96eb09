"""Losses of embeddings, rows of shape (batch, features): near what belongs together, far else."""

from __future__ import annotations

import onnx

from onnxtrain.errors import OptionError
from onnxtrain.onnxblock import blocks, edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.edit import number
from onnxtrain.onnxblock.loss.cross_entropy import CrossEntropyLoss
from onnxtrain.onnxblock.loss.ends import checked, input_of, reduced
from onnxtrain.onnxblock.values import element_type, need_opset

_RANGE_SINCE = 11
"""The first opset that has Range."""
_EPSILON = 1e-6
"""Added to differences, so that the distance of equal rows has a gradient."""
_TINY: dict[int, float] = {onnx.TensorProto.FLOAT16: 2.0**-14}
"""Smallest squared length that a row is divided by, per type; 1e-12 for all others."""


class ContrastiveLoss(Block):
    """``reduce(y * d^2 + (1 - y) * max(0, margin - d)^2) / 2`` of pairs of rows at distance d.

    The target y is 1 for rows that belong together and 0 for others.
    """

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__()
        self.margin = margin
        self.reduction = checked(reduction)

    def build(self, first_name: str, second_name: str, target_name: str | None = "target") -> str:
        """Add the loss; a target that does not exist becomes an input of shape (batch)."""
        mul, sub = blocks.Mul(), blocks.Sub()
        target = input_of(self.base, first_name, target_name, [0], None)
        distance = _distance(self.base, first_name, second_name)
        gap = blocks.Relu()(sub(number(self.base, self.margin, first_name), distance))
        near = mul(target, mul(distance, distance))
        far = mul(sub(number(self.base, 1.0, first_name), target), mul(gap, gap))
        half = number(self.base, 0.5, first_name)
        return reduced(mul(half, blocks.Add()(near, far)), self.reduction)


class TripletMarginLoss(Block):
    """``reduce(max(0, d(anchor, positive) - d(anchor, negative) + margin))``."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__()
        self.margin = margin
        self.reduction = checked(reduction)

    def build(self, anchor_name: str, positive_name: str, negative_name: str) -> str:
        """Add the loss of three embeddings."""
        near = _distance(self.base, anchor_name, positive_name)
        far = _distance(self.base, anchor_name, negative_name)
        margin = number(self.base, self.margin, anchor_name)
        gap = blocks.Add()(blocks.Sub()(near, far), margin)
        return reduced(blocks.Relu()(gap), self.reduction)


class CosineEmbeddingLoss(Block):
    """``reduce(1 - cos)`` for pairs with target 1, ``max(0, cos - margin)`` for those with -1."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__()
        self.margin = margin
        self.reduction = checked(reduction)

    def build(self, first_name: str, second_name: str, target_name: str | None = "target") -> str:
        """Add the loss; a target that does not exist becomes an input of shape (batch)."""
        sub = blocks.Sub()
        target = input_of(self.base, first_name, target_name, [0], None)
        rows = [_unit(self.base, name) for name in (first_name, second_name)]
        cosine = blocks.ReduceSum(keepdims=False, axes=[1])(blocks.Mul()(*rows))
        near = sub(number(self.base, 1.0, first_name), cosine)
        far = blocks.Relu()(sub(cosine, number(self.base, self.margin, first_name)))
        alike = blocks.Greater()(target, number(self.base, 0.0, target))
        return reduced(blocks.Where()(alike, near, far), self.reduction)


class InfoNCELoss(Block):
    """Cross entropy of choosing, for every query, its own key among the keys of the batch.

    Scores are the cosines of all queries and keys divided by the temperature; the key of a query
    is the one in the same row.

    Args:
        temperature: divisor of the cosines.
        symmetric: whether keys choose their query as well; the loss is the mean of both.
        reduction: ``mean``, ``sum`` or ``none``.
    """

    def __init__(
        self, temperature: float = 0.1, symmetric: bool = False, reduction: str = "mean"
    ) -> None:
        super().__init__()
        if not temperature > 0:
            raise OptionError(f"temperature of InfoNCELoss is {temperature}, must be positive")
        self.temperature = temperature
        self.symmetric = symmetric
        self.reduction = checked(reduction)

    def build(self, query_name: str, key_name: str) -> str:
        """Add the loss of two embeddings."""
        mul = blocks.Mul()
        queries, keys = (_unit(self.base, name) for name in (query_name, key_name))
        cosines = blocks.MatMul()(queries, blocks.Transpose()(keys))
        scores = mul(cosines, number(self.base, 1 / self.temperature, query_name))
        rows = _row_numbers(self.base, query_name)
        loss = CrossEntropyLoss(reduction=self.reduction)(scores, rows)
        if not self.symmetric:
            return str(loss)
        back = CrossEntropyLoss(reduction=self.reduction)(blocks.Transpose()(scores), rows)
        return str(mul(number(self.base, 0.5, query_name), blocks.Add()(loss, back)))


def _distance(model: onnx.ModelProto, first: str, second: str) -> str:
    """Name of the Euclidean distance of every pair of rows."""
    difference = blocks.Sub()(first, second)
    moved = blocks.Add()(difference, number(model, _EPSILON, first))
    squares = blocks.ReduceSum(keepdims=False, axes=[1])(blocks.Mul()(moved, moved))
    return str(blocks.Sqrt()(squares))


def _unit(model: onnx.ModelProto, name: str) -> str:
    """Name of the rows divided by their lengths."""
    squares = blocks.ReduceSum(keepdims=True, axes=[1])(blocks.Mul()(name, name))
    tiny = _TINY.get(element_type(model, name), 1e-12)
    length = blocks.Sqrt()(blocks.Clip(clip_min=tiny)(squares))
    return str(blocks.Div()(name, length))


def _row_numbers(model: onnx.ModelProto, name: str) -> str:
    """Name of 0, 1, ... for every row."""
    need_opset(model, "InfoNCELoss", _RANGE_SINCE)
    names = (edit.generate_name(token) for token in ("shape", "count", "rows"))
    shape, count, rows = names
    int64 = onnx.TensorProto.INT64
    zero, one = (edit.add_constant(model, "number", value, int64) for value in (0, 1))
    edit.add_node(model, "Shape", [name], [shape])
    edit.add_node(model, "Gather", [shape, zero], [count])
    edit.add_node(model, "Range", [zero, count, one], [rows])
    return rows
