"""Cross entropy of scores and integer labels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx

from onnxtrain.errors import ModelError, OptionError
from onnxtrain.onnxblock import blocks, edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.edit import number
from onnxtrain.onnxblock.loss.ends import checked, input_of, reduced
from onnxtrain.onnxblock.loss.scores import warn_of_activation, warn_of_probabilities
from onnxtrain.onnxblock.values import element_type, opset_of, require_value
from onnxtrain.types import MS, ONNX

_CROSS_ENTROPY_SINCE = 12
"""The first opset that has SoftmaxCrossEntropyLoss."""
_TINY = 2.0**-24
"""What is added to probabilities: the least that float16 can hold, too."""
_OF_PROBABILITIES = "'likelihood' (onnxblock.loss.LikelihoodLoss)"


class CrossEntropyLoss(Block):
    """Cross entropy of softmax(scores) over axis 1 and integer labels.

    ``l = -weight[label] * log_softmax(scores)[label]``, and the mean is
    ``sum(l) / sum(weight[label])``. Smoothing by e gives
    ``(1 - e) * l - e * mean(weight * log_softmax(scores))``, the mean being that over classes.

    Args:
        weight: factor of every class.
        reduction: ``mean``, ``sum`` or ``none``.
        ignore_index: label of the elements that do not count.
        label_smoothing: share of the probability that is spread over all classes.
    """

    def __init__(
        self,
        weight: npt.ArrayLike | None = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.reduction = checked(reduction)
        self.ignore_index = ignore_index
        if not 0 <= label_smoothing <= 1:
            raise OptionError(f"label_smoothing is {label_smoothing}, must be between 0 and 1")
        self.label_smoothing = label_smoothing

    def build(self, scores_input_name: str, labels_name: str | None = "labels") -> str:
        """Add the loss; labels that do not exist become an int64 graph input.

        Scores have the shape (batch, classes, ...), labels the same without the classes.

        Raises:
            LookupError: if the scores do not exist.
            ModelError: if the scores have fewer than two axes.
        """
        rank = _rank(require_value(self.base, scores_input_name), type(self).__name__)
        axes = [0, *range(2, rank or 2)]
        labels = input_of(self.base, scores_input_name, labels_name, axes, onnx.TensorProto.INT64)
        scores = self._scores(scores_input_name)
        if not self.label_smoothing:
            return self._hard(scores, labels, self.reduction)
        return self._smoothed(scores, labels, rank)

    def _scores(self, given: str) -> str:
        """Name of the raw scores, of what the loss is given."""
        warn_of_activation(self.base, given, "Softmax", "CrossEntropyLoss")
        warn_of_probabilities(self.base, given, "CrossEntropyLoss", _OF_PROBABILITIES)
        return given

    def _hard(self, scores: str, labels: str, reduction: str) -> str:
        """Add the node: that of ONNX, or where the opset has none, one that takes any opset."""
        inputs = [scores, labels]
        if self.weight is not None:
            dtype = element_type(self.base, scores)
            inputs.append(edit.add_constant(self.base, "celoss.weight", self.weight, dtype))
        attributes: dict[str, str | int] = {"reduction": reduction}
        loss = edit.generate_name("loss")
        log_prob = edit.generate_name("log_prob")
        op_type, domain = "SoftmaxCrossEntropyLoss", ONNX
        if opset_of(self.base) < _CROSS_ENTROPY_SINCE:
            op_type, domain = "SoftmaxCrossEntropyLossInternal", MS
        if self.ignore_index is not None and domain == ONNX:
            attributes["ignore_index"] = self.ignore_index
        elif self.ignore_index is not None:
            inputs = [*inputs, *[""] * (3 - len(inputs)), self._ignored_label()]
        edit.add_node(self.base, op_type, inputs, [loss, log_prob], domain, attributes)
        return loss

    def _smoothed(self, scores: str, labels: str, rank: int | None) -> str:
        """Add the loss of labels with a share of every other class."""
        add, mul = blocks.Add(), blocks.Mul()
        hard = self._hard(scores, labels, "none")
        even = blocks.Neg()(self._mean_over_classes(scores, rank))
        ignored = None
        if self.ignore_index is not None:
            ignored = blocks.Equal()(labels, self._ignored_label())
            even = blocks.Where()(ignored, number(self.base, 0.0, scores), even)
        kept = number(self.base, 1 - self.label_smoothing, scores)
        spread = number(self.base, self.label_smoothing, scores)
        loss = add(mul(kept, hard), mul(spread, even))
        if self.reduction != "mean" or (self.weight is None and ignored is None):
            return reduced(loss, self.reduction)
        return str(blocks.Div()(reduced(loss, "sum"), self._total(scores, labels, ignored)))

    def _mean_over_classes(self, scores: str, rank: int | None) -> str:
        """Name of mean(weight * log_softmax(scores)) over axis 1."""
        log_prob = blocks.LogSoftmax(axis=1)(scores)
        if self.weight is not None:
            if rank is None:
                raise ModelError(
                    f"cannot weight the smoothed loss: scores '{scores}' have no known rank\n"
                    "  declare their shape, or leave out weight or label_smoothing"
                )
            weight = np.reshape(np.asarray(self.weight), (-1, *[1] * (rank - 2)))
            dtype = element_type(self.base, scores)
            factor = edit.add_constant(self.base, "celoss.weight", weight, dtype)
            log_prob = blocks.Mul()(log_prob, factor)
        return str(blocks.ReduceMean(keepdims=False, axes=[1])(log_prob))

    def _total(self, scores: str, labels: str, ignored: str | None) -> str:
        """Name of the sum of the weights of all labels that count, or 1 if none does."""
        dtype = element_type(self.base, scores)
        where, zero, one = blocks.Where(), *(number(self.base, x, scores) for x in (0.0, 1.0))
        each = one
        if self.weight is not None:
            label = labels
            if ignored is not None:
                first = edit.add_constant(self.base, "label", 0, onnx.TensorProto.INT64)
                label = where(ignored, first, labels)
            weight = edit.add_constant(self.base, "celoss.weight", self.weight, dtype)
            each = edit.generate_name("weight_of_label")
            edit.add_node(self.base, "Gather", [weight, label], [each])
        if ignored is not None:
            each = where(ignored, zero, each)
        total = blocks.ReduceSum(keepdims=False)(each)
        return str(where(blocks.Equal()(total, zero), one, total))

    def _ignored_label(self) -> str:
        token, dtype = "celoss.ignore_index", onnx.TensorProto.INT64
        assert self.ignore_index is not None
        return edit.add_constant(self.base, token, self.ignore_index, dtype)


class LikelihoodLoss(CrossEntropyLoss):
    """Cross entropy of probabilities over axis 1 and integer labels.

    It is that of the scores ``log(p)``, whose softmax is p, or p divided by its sum. For models
    that give probabilities and nothing else, such as classifiers of scikit-learn; a probability of
    0 counts as 2⁻²⁴.

    Args:
        weight: factor of every class.
        reduction: ``mean``, ``sum`` or ``none``.
        ignore_index: label of the elements that do not count.
        label_smoothing: share of the probability that is spread over all classes.
    """

    def _scores(self, given: str) -> str:
        tiny = number(self.base, _TINY, given)
        return str(blocks.Log()(blocks.Add()(blocks.Relu()(given), tiny)))


def _rank(scores: onnx.ValueInfoProto, loss: str) -> int | None:
    """Number of axes of the scores, if it is known.

    Raises:
        ModelError: if there is none for the classes.
    """
    tensor = scores.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    rank = len(tensor.shape.dim)
    if rank < 2:
        raise ModelError(
            f"scores '{scores.name}' of {loss} have {rank} axes\n"
            "  give them the shape (batch, classes, ...)"
        )
    return rank
