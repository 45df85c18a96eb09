"""The loss of a run: what the trainer gets, what it compares with, and what can be measured."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from onnxtrain.cli.near import nearest
from onnxtrain.data import calls
from onnxtrain.errors import LossError

CLASSES, TOKENS, NUMBERS, YES_NO = "classes", "tokens", "numbers", "yes or no"
_KINDS = {
    "cross_entropy": CLASSES,
    "likelihood": CLASSES,
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


@dataclasses.dataclass(frozen=True)
class Goal:
    """A loss and what is known about it.

    Attributes:
        name: As the user wrote it.
        loss: For the trainer: a name, a block or a torch function.
        kind: What the targets are; None if only the loss itself knows.
    """

    name: str
    loss: Any
    kind: str | None

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
    if calls.is_call(name):
        return Goal(name, _own(name), None)
    close = OTHER_NAMES.get(name.lower()) or nearest(name, LOSSES)
    raise LossError(
        f"unknown loss '{name}'\n  have  {', '.join(sorted(LOSSES))}, or module:function"
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
