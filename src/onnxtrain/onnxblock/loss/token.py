"""Cross entropy of scores for every token, the classes on the last axis."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnxtrain.errors import LossError
from onnxtrain.onnxblock import edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.loss.cross_entropy import CrossEntropyLoss
from onnxtrain.onnxblock.loss.ends import input_of
from onnxtrain.onnxblock.values import exists, need_opset, require_value

IGNORED = -100
"""Label of tokens that do not count, as torch has it."""
TOKENS = ("input_ids", "ids", "tokens", "x")
"""Names by which inputs with tokens are known."""
_SLICE_SINCE = 10
"""The first opset whose Slice takes a step, and its ends as inputs."""
_INT64 = onnx.TensorProto.INT64
_WHOLE = (onnx.TensorProto.INT32, _INT64)


def token_input(inputs: Mapping[str, bool]) -> str | None:
    """The input with the tokens: one with a usual name, or the only one that could have them.

    Args:
        inputs: For every input whether it has whole numbers on two axes.
    """
    if known := [name for name in TOKENS if name in inputs]:
        return known[0]
    able = [name for name, is_able in inputs.items() if is_able]
    return able[0] if len(able) == 1 else None


class TokenCrossEntropyLoss(Block):
    """Cross entropy of scores [..., classes] and labels [...].

    Args:
        reduction: ``mean`` or ``sum`` over the tokens that count.
        ignore_index: label of the tokens that do not count.
    """

    def __init__(self, reduction: str = "mean", ignore_index: int = IGNORED) -> None:
        super().__init__()
        self._loss = CrossEntropyLoss(reduction=reduction, ignore_index=ignore_index)

    def build(self, scores_input_name: str, labels_name: str | None = "labels") -> str:
        """Add the loss; labels that do not exist become an int64 graph input.

        Raises:
            LookupError: if the scores do not exist.
            LossError: if the number of axes of the scores is not known, or below two.
        """
        rank = _rank(self.base, scores_input_name)
        axes = range(rank - 1)
        labels = input_of(self.base, scores_input_name, labels_name, list(axes), _INT64)
        return _over_rows(self.base, self._loss, scores_input_name, labels, rank)


class NextTokenLoss(Block):
    """Mean cross entropy of each token's scores and the token that follows it.

    Scores are [batch, length, vocabulary], tokens [batch, length].

    Args:
        tokens: the input of the model that has the tokens; None finds it by its name, or because
            it is the only one with whole numbers on two axes.
    """

    def __init__(self, tokens: str | None = None) -> None:
        super().__init__()
        self.tokens = tokens
        self._loss = CrossEntropyLoss(ignore_index=IGNORED)

    def build(self, scores_input_name: str) -> str:
        """Add the loss; the last token of each row has no label and does not count.

        Raises:
            LookupError: if the scores do not exist.
            LossError: if the scores have no three axes, or the model has no such tokens.
            ModelError: if the opset of the model is too old.
        """
        need_opset(self.base, "NextTokenLoss", _SLICE_SINCE)
        rank = _rank(self.base, scores_input_name)
        tokens = self._tokens()
        if rank != 3 or tokens is None:
            able = [f"'{v.name}'" for v in self.base.graph.input if _may_be_tokens(v)]
            raise LossError(
                "NextTokenLoss needs scores [batch, length, vocabulary] and tokens [batch, length]"
                f"\n  scores '{scores_input_name}' have {rank} axes, inputs with whole numbers on "
                f"two axes are {', '.join(able) or 'none'}\n"
                f"  the input with the tokens must be called {' or '.join(TOKENS)}, or be named; "
                "with labels of their own, tokens take the loss token_cross_entropy, samples take "
                "cross_entropy"
            )
        labels = self._shifted(tokens)
        return _over_rows(self.base, self._loss, scores_input_name, labels, rank)

    def _tokens(self) -> str | None:
        """Name of the input with the tokens, None if there is no such input."""
        if self.tokens is not None:
            return self.tokens if exists(self.base, self.tokens) else None
        return token_input({value.name: _may_be_tokens(value) for value in self.base.graph.input})

    def _shifted(self, name: str) -> str:
        """Name of the tokens moved one to the left, what does not count behind the last."""
        tokens = self._node("Cast", [name], to=_INT64)
        ends = [self._constant([value]) for value in (1, 2**62, 1)]
        rest = self._node("Slice", [tokens, *ends])
        shape = [self._node("Shape", [name]), *(self._constant([v]) for v in (0, 1))]
        rows = self._node("Concat", [self._node("Slice", shape), self._constant([1])], axis=0)
        last = self._node("Expand", [self._constant([IGNORED]), rows])
        return self._node("Concat", [rest, last], axis=1)

    def _node(self, op_type: str, inputs: list[str], **attributes: int) -> str:
        name = edit.generate_name(op_type.lower())
        edit.add_node(self.base, op_type, inputs, [name], attributes=attributes)
        return name

    def _constant(self, values: list[int]) -> str:
        return edit.add_constant(self.base, "token", values, _INT64)


def _may_be_tokens(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return tensor.elem_type in _WHOLE and len(tensor.shape.dim) == 2


def _over_rows(
    model: onnx.ModelProto, loss: CrossEntropyLoss, scores: str, labels: str, rank: int
) -> str:
    """Add the loss of the scores as rows, one a token."""
    flat, each = edit.generate_name("rows"), edit.generate_name("labels")
    edit.add_node(model, "Flatten", [scores], [flat], attributes={"axis": rank - 1})
    every = edit.add_constant(model, "every", [-1], _INT64)
    edit.add_node(model, "Reshape", [labels, every], [each])
    edit.declare(model, onnx.helper.make_tensor_value_info(each, _INT64, [None]))
    return str(loss(flat, each))


def _rank(model: onnx.ModelProto, scores: str) -> int:
    """Number of axes of the scores."""
    tensor = require_value(model, scores).type.tensor_type
    rank = len(tensor.shape.dim) if tensor.HasField("shape") else 0
    if rank < 2:
        raise LossError(
            f"scores '{scores}' have {rank or 'an unknown number of'} axes\n"
            "  a loss over tokens needs the shape (batch, length, classes)"
        )
    return rank
