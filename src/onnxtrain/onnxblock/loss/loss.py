"""Losses built of operators that have gradients, with constants of the prediction's type."""

from __future__ import annotations

import numpy.typing as npt
import onnx

from onnxtrain.errors import ModelError
from onnxtrain.onnxblock import blocks, edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.values import element_type, exists, opset_of, require_value
from onnxtrain.types import MS, ONNX

_CROSS_ENTROPY_SINCE = 12
"""The first opset that has SoftmaxCrossEntropyLoss."""
_REDUCTIONS: dict[str, type[blocks.ReduceMean | blocks.ReduceSum] | None] = {
    "mean": blocks.ReduceMean,
    "sum": blocks.ReduceSum,
    "none": None,
}


class MSELoss(Block):
    """``reduce((x - y) ** 2)``."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = _checked(reduction)

    def build(self, loss_input_name: str, target_name: str | None = "target") -> str:
        """Add the loss; a target that does not exist becomes a graph input like the prediction.

        Raises:
            LookupError: if the prediction does not exist.
        """
        target = _target(self.base, loss_input_name, target_name)
        square = blocks.Pow(2.0)(blocks.Sub()(loss_input_name, target))
        return _reduce(square, self.reduction)


class L1Loss(Block):
    """``reduce(|x - y|)``."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = _checked(reduction)

    def build(self, loss_input_name: str, target_name: str | None = "target") -> str:
        """Add the loss; a target that does not exist becomes a graph input like the prediction.

        Raises:
            LookupError: if the prediction does not exist.
        """
        target = _target(self.base, loss_input_name, target_name)
        distance = blocks.Abs()(blocks.Sub()(loss_input_name, target))
        return _reduce(distance, self.reduction)


class BCEWithLogitsLoss(Block):
    """Binary cross entropy of sigmoid(x) and targets y in [0, 1], stable for every finite x.

    ``reduce(weight * (pos_weight * y * softplus(-x) + (1 - y) * softplus(x)))`` where
    ``softplus(x) = log(1 + exp(-|x|)) + (|x| + x) / 2``. Written this way nothing overflows, and
    the gradient at x = 0 is right although that of ``|x|`` is 0 there.

    Args:
        weight: factor of every element, broadcast to the shape of the prediction.
        reduction: ``mean``, ``sum`` or ``none``.
        pos_weight: factor of the positive targets, broadcast likewise.
    """

    def __init__(
        self,
        weight: npt.ArrayLike | None = None,
        reduction: str = "mean",
        pos_weight: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.reduction = _checked(reduction)
        self.pos_weight = pos_weight

    def build(self, loss_input_name: str, target_name: str | None = "target") -> str:
        """Add the loss; a target that does not exist becomes a graph input like the prediction.

        Raises:
            LookupError: if the prediction does not exist.
        """
        add, mul = blocks.Add(), blocks.Mul()
        target = _target(self.base, loss_input_name, target_name)
        dtype = element_type(self.base, loss_input_name)
        one = edit.add_constant(self.base, "bceloss.one", 1.0, dtype)
        negative, positive = self._softplus_of_both_signs(loss_input_name, one)
        if self.pos_weight is not None:
            factor = edit.add_constant(self.base, "bceloss.pos_weight", self.pos_weight, dtype)
            negative = mul(negative, factor)
        loss = add(mul(negative, target), mul(positive, blocks.Sub()(one, target)))
        if self.weight is not None:
            factor = edit.add_constant(self.base, "bceloss.weight", self.weight, dtype)
            loss = mul(factor, loss)
        return _reduce(loss, self.reduction)

    def _softplus_of_both_signs(self, x: str, one: str) -> tuple[str, str]:
        """Names of softplus(-x) and softplus(x)."""
        add, mul = blocks.Add(), blocks.Mul()
        size = blocks.Abs()(x)
        tail = blocks.Log()(add(one, blocks.Exp()(blocks.Neg()(size))))
        half = edit.add_constant(self.base, "bceloss.half", 0.5, element_type(self.base, x))
        # Halved before they are added, so that the largest float16 does not overflow.
        half_x, half_size = mul(half, x), mul(half, size)
        negative = add(tail, blocks.Sub()(half_size, half_x))
        positive = add(tail, add(half_size, half_x))
        return negative, positive


class CrossEntropyLoss(Block):
    """Cross entropy of softmax(scores) over axis 1 and integer labels.

    ``l = -weight[label] * log_softmax(scores)[label]``, and the mean is
    ``sum(l) / sum(weight[label])``.

    Args:
        weight: factor of every class.
        reduction: ``mean``, ``sum`` or ``none``.
        ignore_index: label of the elements that do not count.
    """

    def __init__(
        self,
        weight: npt.ArrayLike | None = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.reduction = _checked(reduction)
        self.ignore_index = ignore_index

    def build(self, scores_input_name: str, labels_name: str | None = "labels") -> str:
        """Add the loss; labels that do not exist become an int64 graph input.

        Scores have the shape (batch, classes, ...), labels the same without the classes.

        Raises:
            LookupError: if the scores do not exist.
            ModelError: if the scores have fewer than two axes.
        """
        scores = require_value(self.base, scores_input_name)
        if not labels_name or not exists(self.base, labels_name):
            labels_name = labels_name or edit.generate_name(self.base, "labels")
            edit.add_input_like(self.base, _labels_like(scores), labels_name)
        inputs = [scores_input_name, labels_name]
        if self.weight is not None:
            dtype = scores.type.tensor_type.elem_type
            inputs.append(edit.add_constant(self.base, "celoss.weight", self.weight, dtype))
        return self._add_loss(inputs)

    def _add_loss(self, inputs: list[str]) -> str:
        """Add the node: that of ONNX, or where the opset has none, one that takes any opset."""
        attributes: dict[str, str | int] = {"reduction": self.reduction}
        loss = edit.generate_name(self.base, "loss")
        log_prob = edit.generate_name(self.base, "log_prob")
        op_type, domain = "SoftmaxCrossEntropyLoss", ONNX
        if opset_of(self.base) < _CROSS_ENTROPY_SINCE:
            op_type, domain = "SoftmaxCrossEntropyLossInternal", MS
        if self.ignore_index is not None and domain == ONNX:
            attributes["ignore_index"] = self.ignore_index
        elif self.ignore_index is not None:
            token, dtype = "celoss.ignore_index", onnx.TensorProto.INT64
            ignored = edit.add_constant(self.base, token, self.ignore_index, dtype)
            inputs = [*inputs, *[""] * (3 - len(inputs)), ignored]
        edit.add_node(self.base, op_type, inputs, [loss, log_prob], domain, attributes)
        return loss


def _checked(reduction: str) -> str:
    if reduction not in _REDUCTIONS:
        raise RuntimeError(f"Reduction {reduction} not supported.")
    return reduction


def _reduce(name: str, reduction: str) -> str:
    block = _REDUCTIONS[reduction]
    return name if block is None else str(block(keepdims=False)(name))


def _target(model: onnx.ModelProto, prediction: str, name: str | None) -> str:
    """Name of the target, which becomes an input like the prediction if it does not exist."""
    if name and exists(model, name):
        return name
    return str(blocks.InputLike(prediction)(name))


def _labels_like(scores: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Int64 labels: the shape of the scores without axis 1."""
    labels = onnx.ValueInfoProto()
    labels.CopyFrom(scores)
    tensor = labels.type.tensor_type
    tensor.elem_type = onnx.TensorProto.INT64
    if tensor.HasField("shape"):
        if len(tensor.shape.dim) < 2:
            raise ModelError(
                f"scores '{scores.name}' of CrossEntropyLoss have {len(tensor.shape.dim)} axes\n"
                "  give them the shape (batch, classes, ...)"
            )
        del tensor.shape.dim[1]
    return labels
