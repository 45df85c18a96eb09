"""Cross entropy of scores for every token, the classes on the last axis."""

from __future__ import annotations

import onnx

from onnxtrain.errors import LossError
from onnxtrain.onnxblock import edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.loss.cross_entropy import CrossEntropyLoss
from onnxtrain.onnxblock.loss.ends import input_of
from onnxtrain.onnxblock.values import exists, require_value

IGNORED = -100
"""Label of tokens that do not count, as torch has it."""
TOKENS = ("input_ids", "ids", "tokens", "x")
"""Names by which inputs with tokens are known."""
_INT64 = onnx.TensorProto.INT64


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
        tokens: the input of the model that has the tokens; None finds it by its name.
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
        """
        rank = _rank(self.base, scores_input_name)
        tokens = self._tokens()
        if rank != 3 or tokens is None:
            inputs = ", ".join(f"'{value.name}'" for value in self.base.graph.input)
            raise LossError(
                "NextTokenLoss needs scores [batch, length, vocabulary] and tokens [batch, length]"
                f"\n  scores '{scores_input_name}' have {rank} axes, inputs are {inputs}\n"
                f"  the input with the tokens must be called {' or '.join(TOKENS)}, or be named"
            )
        labels = self._shifted(tokens)
        return _over_rows(self.base, self._loss, scores_input_name, labels, rank)

    def _tokens(self) -> str | None:
        """Name of the input with the tokens, None if there is no such input."""
        names = TOKENS if self.tokens is None else (self.tokens,)
        return next((name for name in names if exists(self.base, name)), None)

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
        name = edit.generate_name(self.base, op_type.lower())
        edit.add_node(self.base, op_type, inputs, [name], attributes=attributes)
        return name

    def _constant(self, values: list[int]) -> str:
        return edit.add_constant(self.base, "token", values, _INT64)


def _over_rows(
    model: onnx.ModelProto, loss: CrossEntropyLoss, scores: str, labels: str, rank: int
) -> str:
    """Add the loss of the scores as rows, one a token."""
    flat, each = edit.generate_name(model, "rows"), edit.generate_name(model, "labels")
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
