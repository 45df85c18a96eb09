"""Kullback-Leibler divergence."""

from __future__ import annotations

import onnx

from onnxtrain.onnxblock import blocks, edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.edit import number
from onnxtrain.onnxblock.loss.ends import REDUCTIONS, checked, reduced, target_of
from onnxtrain.onnxblock.values import element_type


class KLDivLoss(Block):
    """``reduce(y * (log(y) - x))`` of log-probabilities x and probabilities y; 0 where y is 0.

    Args:
        reduction: ``mean`` (over all elements), ``batchmean`` (the sum divided by the size of the
            first axis, which is the divergence as it is defined), ``sum`` or ``none``.
        log_target: whether the targets are log-probabilities too.
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__()
        self.reduction = checked(reduction, ("batchmean", *REDUCTIONS))
        self.log_target = log_target

    def build(self, loss_input_name: str, target_name: str | None = "target") -> str:
        """Add the loss; a target that does not exist becomes a graph input like the prediction.

        Raises:
            LookupError: if the prediction does not exist.
        """
        target = target_of(self.base, loss_input_name, target_name)
        share, logarithm = self._target_and_log(target)
        loss = blocks.Mul()(share, blocks.Sub()(logarithm, loss_input_name))
        if self.reduction != "batchmean":
            return reduced(loss, self.reduction)
        count = _first_axis(self.base, loss_input_name)
        return str(blocks.Div()(reduced(loss, "sum"), count))

    def _target_and_log(self, target: str) -> tuple[str, str]:
        """Names of the probabilities and of their logarithms, 0 for a probability of 0."""
        if self.log_target:
            return str(blocks.Exp()(target)), target
        positive = blocks.Greater()(target, number(self.base, 0.0, target))
        safe = blocks.Where()(positive, target, number(self.base, 1.0, target))
        return target, str(blocks.Log()(safe))


def _first_axis(model: onnx.ModelProto, name: str) -> str:
    """Name of the size of the first axis, as a number of the value's type."""
    shape, size = (edit.generate_name(token) for token in ("shape", "first_axis"))
    first = edit.add_constant(model, "axis", 0, onnx.TensorProto.INT64)
    edit.add_node(model, "Shape", [name], [shape])
    edit.add_node(model, "Gather", [shape, first], [size])
    return str(blocks.Cast(element_type(model, name))(size))
