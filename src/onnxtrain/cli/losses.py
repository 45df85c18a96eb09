"""The loss of a run: what the trainer gets, what it compares with, and what can be measured."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxtrain.cli.near import nearest
from onnxtrain.data import LABELS, Slot, calls
from onnxtrain.errors import LossError

if TYPE_CHECKING:
    import torch

CLASSES, TOKENS, NUMBERS, YES_NO = "classes", "tokens", "numbers", "yes or no"
_KINDS = {
    "cross_entropy": CLASSES,
    "token_cross_entropy": TOKENS,
    "next_token": TOKENS,
    "mse": NUMBERS,
    "l1": NUMBERS,
    "huber": NUMBERS,
    "smooth_l1": NUMBERS,
    "bce": YES_NO,
}
IGNORED = -100
"""A label of a token that does not count."""
OTHER_NAMES = {
    "binary_cross_entropy": "bce",
    "ce": "cross_entropy",
    "mae": "l1",
    "nll": "cross_entropy",
    "sparse_categorical_crossentropy": "cross_entropy",
    "categorical_crossentropy": "cross_entropy",
    "binary_crossentropy": "bce",
}
"""Names that others give to losses."""
TOKEN_IDS = ("input_ids", "ids", "tokens", "x")


@dataclasses.dataclass(frozen=True)
class Goal:
    """A loss and what is known about it.

    Attributes:
        name: As the user wrote it.
        loss: For the trainer: a name, a block or a torch function.
        kind: What the targets are; None if only the loss itself knows.
        slots: What it compares with, where the trainer cannot tell.
        targets: Name of the input that holds the targets; None if there is none.
    """

    name: str
    loss: Any
    kind: str | None
    slots: tuple[Slot, ...] = ()
    targets: str | None = None

    @property
    def is_function(self) -> bool:
        """Whether it is a torch function, which finds in a batch what it needs."""
        return not isinstance(self.loss, str) and inspect.isfunction(self.loss)


def goal(name: str) -> Goal:
    """The loss of a name, or of ``module:function``.

    Raises:
        LossError: if there is none.
    """
    from onnxtrain.training.build import LOSSES

    if name in LOSSES:
        return Goal(name, name, _KINDS.get(name))
    if name == "token_cross_entropy":
        slot = Slot("labels", np.dtype(np.int64), (None, None), LABELS)
        return Goal(name, token_cross_entropy, TOKENS, (slot,), "labels")
    if name == "next_token":
        return Goal(name, next_token, TOKENS)
    if calls.is_call(name):
        return Goal(name, _own(name), None)
    known = sorted({*LOSSES, "token_cross_entropy", "next_token"})
    close = OTHER_NAMES.get(name.lower()) or nearest(name, known)
    raise LossError(
        f"unknown loss '{name}'\n  have  {', '.join(known)}, or module:function"
        + (f"\n  did you mean  --loss {close}" if close else "")
    )


def _own(name: str) -> Any:
    """A block, a function that makes one, or a torch function of outputs and batch."""
    from onnxtrain.onnxblock import Block

    found = calls.find(name)
    if isinstance(found, Block):
        return found
    if isinstance(found, type):
        return found()
    needed = [
        p
        for p in inspect.signature(found).parameters.values()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]
    return found if needed else found()


def token_cross_entropy(outputs: dict[str, torch.Tensor], batch: dict[str, Any]) -> torch.Tensor:
    """Mean cross entropy of scores with the classes last; labels of -100 do not count."""
    import torch

    scores = next(iter(outputs.values()))
    labels = batch["labels"]
    if scores.shape[:-1] != labels.shape:
        raise LossError(
            f"token_cross_entropy needs scores [..., classes] and labels [...], it got "
            f"{list(scores.shape)} and {list(labels.shape)}\n"
            "  for one label a sample use --loss cross_entropy"
        )
    return torch.nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


def next_token(outputs: dict[str, torch.Tensor], batch: dict[str, Any]) -> torch.Tensor:
    """Mean cross entropy of each token's scores and the token that follows it."""
    import torch

    scores, tokens = next(iter(outputs.values())), batch[token_input(batch)]
    if scores.shape[:-1] != tokens.shape:
        raise LossError(
            "next_token needs tokens [batch, length] and scores [batch, length, vocabulary], it "
            f"got {list(tokens.shape)} and {list(scores.shape)}"
        )
    return torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def token_input(batch: dict[str, Any]) -> str:
    """Name of the tokens in a batch.

    Raises:
        LossError: if none can be told.
    """
    for name in TOKEN_IDS:
        if name in batch:
            return name
    raise LossError(
        f"next_token finds no tokens in {', '.join(batch)}\n"
        f"  the input must be called {' or '.join(TOKEN_IDS)}; otherwise give shifted labels and "
        "--loss token_cross_entropy"
    )
