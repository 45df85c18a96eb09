"""Losses of a prediction and a target of the same shape.

Cross entropy is imported too: programs for the reference look for all of its losses here.
"""

from __future__ import annotations

import math

import numpy.typing as npt
import onnx

from onnxtrain.errors import OptionError
from onnxtrain.onnxblock import blocks, edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.edit import number
from onnxtrain.onnxblock.loss.cross_entropy import CrossEntropyLoss
from onnxtrain.onnxblock.loss.ends import checked, reduced, target_of
from onnxtrain.onnxblock.loss.scores import warn_of_activation
from onnxtrain.onnxblock.values import element_type

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "L1Loss",
    "MSELoss",
    "SmoothL1Loss",
]

_SMALLEST = 2.0**-126
"""The smallest float32 with all its digits; below, it depends on the runtime what is 0."""
_SMALLEST_OF: dict[int, float] = {
    onnx.TensorProto.FLOAT16: 2.0**-24,
    onnx.TensorProto.DOUBLE: math.exp(-100),
}
"""In other types: the smallest positive float16, and where the logarithm of a double is -100."""


class MSELoss(Block):
    """``reduce((x - y) ** 2)``."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = checked(reduction)

    def build(self, loss_input_name: str, target_name: str | None = "target") -> str:
        """Add the loss; a target that does not exist becomes a graph input like the prediction.

        Raises:
            LookupError: if the prediction does not exist.
        """
        target = target_of(self.base, loss_input_name, target_name)
        square = blocks.Pow(2.0)(blocks.Sub()(loss_input_name, target))
        return reduced(square, self.reduction)


class L1Loss(Block):
    """``reduce(|x - y|)``."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = checked(reduction)

    def build(self, loss_input_name: str, target_name: str | None = "target") -> str:
        """Add the loss; a target that does not exist becomes a graph input like the prediction.

        Raises:
            LookupError: if the prediction does not exist.
        """
        target = target_of(self.base, loss_input_name, target_name)
        distance = blocks.Abs()(blocks.Sub()(loss_input_name, target))
        return reduced(distance, self.reduction)


class HuberLoss(Block):
    """``reduce(d^2 / 2)`` where ``d = |x - y|`` is up to delta, ``delta * (d - delta / 2)`` above.

    Written as ``c^2 / 2 + delta * (d - c)`` with ``c = min(d, delta)``.
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__()
        self.reduction = checked(reduction)
        if not delta > 0:
            raise OptionError(f"delta of HuberLoss is {delta}, must be positive")
        self.delta = delta

    def build(self, loss_input_name: str, target_name: str | None = "target") -> str:
        """Add the loss; a target that does not exist becomes a graph input like the prediction.

        Raises:
            LookupError: if the prediction does not exist.
        """
        return reduced(self._each(loss_input_name, target_name), self.reduction)

    def _each(self, prediction: str, target_name: str | None) -> str:
        """Name of the loss of every element."""
        mul, sub = blocks.Mul(), blocks.Sub()
        target = target_of(self.base, prediction, target_name)
        distance = blocks.Abs()(sub(prediction, target))
        near = blocks.Clip(clip_max=self.delta)(distance)
        square = mul(number(self.base, 0.5, prediction), mul(near, near))
        slope = number(self.base, self.delta, prediction)
        return str(blocks.Add()(square, mul(slope, sub(distance, near))))


class SmoothL1Loss(HuberLoss):
    """``reduce(d^2 / (2 beta))`` where ``d = |x - y|`` is below beta, ``d - beta / 2`` above."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction, beta)

    def _each(self, prediction: str, target_name: str | None) -> str:
        """Name of the loss of every element."""
        huber = super()._each(prediction, target_name)
        return str(blocks.Mul()(number(self.base, 1 / self.delta, prediction), huber))


class BCELoss(Block):
    """Binary cross entropy of probabilities p and targets y in [0, 1].

    ``reduce(-weight * (y * log(p) + (1 - y) * log(1 - p)))`` with logarithms of at least -100.
    Prefer ``BCEWithLogitsLoss``, which is exact where probabilities round to 0 and 1.
    """

    def __init__(self, weight: npt.ArrayLike | None = None, reduction: str = "mean") -> None:
        super().__init__()
        self.weight = weight
        self.reduction = checked(reduction)

    def build(self, loss_input_name: str, target_name: str | None = "target") -> str:
        """Add the loss; a target that does not exist becomes a graph input like the prediction.

        Raises:
            LookupError: if the prediction does not exist.
        """
        mul, sub = blocks.Mul(), blocks.Sub()
        target = target_of(self.base, loss_input_name, target_name)
        one = number(self.base, 1.0, loss_input_name)
        hit = mul(target, self._log(loss_input_name))
        miss = mul(sub(one, target), self._log(sub(one, loss_input_name)))
        loss = blocks.Neg()(blocks.Add()(hit, miss))
        if self.weight is not None:
            dtype = element_type(self.base, loss_input_name)
            loss = mul(edit.add_constant(self.base, "bceloss.weight", self.weight, dtype), loss)
        return reduced(loss, self.reduction)

    def _log(self, name: str) -> str:
        """Name of log(p), -100 where p is almost 0; there the gradient is 0 instead of infinite."""
        floor = _SMALLEST_OF.get(element_type(self.base, name), _SMALLEST)
        tiny = blocks.Greater()(number(self.base, floor, name), name)
        logarithm = blocks.Log()(blocks.Clip(clip_min=floor)(name))
        return str(blocks.Where()(tiny, number(self.base, -100.0, name), logarithm))


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
        self.reduction = checked(reduction)
        self.pos_weight = pos_weight

    def build(self, loss_input_name: str, target_name: str | None = "target") -> str:
        """Add the loss; a target that does not exist becomes a graph input like the prediction.

        Raises:
            LookupError: if the prediction does not exist.
        """
        add, mul = blocks.Add(), blocks.Mul()
        target = target_of(self.base, loss_input_name, target_name)
        warn_of_activation(self.base, loss_input_name, "Sigmoid", "BCEWithLogitsLoss")
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
        return reduced(loss, self.reduction)

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
