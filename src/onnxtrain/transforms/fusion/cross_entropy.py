"""SoftmaxCrossEntropyLoss: the negative log-likelihood of a LogSoftmax over the classes."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.transforms.fusion.pattern import Match, Pattern, Refusal
from onnxtrain.transforms.fusion.reading import made_by, opset_of, rank

_CLASSES = 1
"""The axis of the classes."""
_LAST_AXIS_SINCE = 13
"""From this opset on LogSoftmax is along the last axis unless it says otherwise, before along 1."""


def match(loss: ir.Node) -> Match | None:
    """A NegativeLogLikelihoodLoss of the result of LogSoftmax."""
    scores = made_by(loss.inputs[0], "LogSoftmax")
    x = None if scores is None else scores.inputs[0]
    size = rank(x)
    if scores is None or x is None or size is None:
        return None
    old = opset_of(loss) < _LAST_AXIS_SINCE
    axis = scores.attributes.get_int("axis", 1 if old else -1)
    if axis % size != _CLASSES or (old and size > 2):
        raise Refusal(f"LogSoftmax is along axis {axis}, not along that of the classes")

    def emit(op: Ops) -> ir.Value:
        numbers = loss.attributes
        return op.SoftmaxCrossEntropyLoss(
            x,
            *loss.inputs[1:],
            reduction=numbers.get_string("reduction", "mean"),
            ignore_index=numbers["ignore_index"].as_int() if "ignore_index" in numbers else None,
        )

    return Match((scores, loss), emit)


PATTERN = Pattern("SoftmaxCrossEntropyLoss", frozenset({"NegativeLogLikelihoodLoss"}), match)
