"""Labels that fit the classes of a model, or what to type so that they do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onnxtrain.cli.losses import CLASSES, TOKENS
from onnxtrain.errors import FeedError

if TYPE_CHECKING:
    from onnxtrain.cli.losses import Goal
    from onnxtrain.training.trainer import Trainer

TOKEN_HINT = "  if the classes are the last axis of the scores, use --loss token_cross_entropy"


@contextlib.contextmanager
def hinted(trainer: Trainer, goal: Goal) -> Iterator[None]:
    """With: data that does not fit a loss for classes gets a hint at the loss for tokens."""
    try:
        yield
    except FeedError as error:
        shape = trainer.output_shapes[trainer.loss_output_names[0]]
        if goal.kind == CLASSES and shape is not None and len(shape) == 3:
            raise FeedError(f"{error}\n{TOKEN_HINT}") from error
        raise


def check_labels(
    trainer: Trainer, goal: Goal, arrays: dict[str, Any], first: int
) -> dict[str, Any]:
    """The arrays with labels counted from zero.

    Raises:
        FeedError: if the model has no class for a label.
    """
    name = goal.targets or next(iter(trainer.loss_input_names), None)
    if goal.kind not in (CLASSES, TOKENS) or name is None or name not in arrays:
        if first:
            raise FeedError(f"loss '{goal.name}' has no classes\n  leave out --first-label")
        return arrays
    labels = arrays[name] - first if first else arrays[name]
    count = _classes(trainer, goal, arrays, labels)
    seen = labels[labels != -100] if goal.kind == TOKENS else labels
    low, high = (int(seen.min()), int(seen.max())) if seen.size else (0, 0)
    if low < 0 or high >= count:
        raise FeedError(
            f"'{name}' has labels from {low + first} to {high + first}, the model has {count} "
            f"classes: {first} to {count - 1 + first}\n  {_cure(name, low, high, count, first)}"
        )
    return {**arrays, name: labels}


def _cure(name: str, low: int, high: int, count: int, first: int) -> str:
    if high - low < count:
        return f"the data counts from {low + first}: add --first-label {low + first}"
    return (
        f"take another array with --map {name}=ARRAY, or a model with {high - low + 1} scores "
        "for a sample"
    )


def _classes(trainer: Trainer, goal: Goal, arrays: dict[str, Any], labels: Any) -> int:
    """How many classes there are, from the model's output or else from a trial of one sample."""
    output = trainer.loss_output_names[0]
    axis = 1 if goal.kind == CLASSES else -1
    shape = trainer.output_shapes[output]
    told = shape is not None and shape[axis] is not None
    if shape is None or not told or (goal.kind == CLASSES and None in shape[2:]):
        size = _trial_size(trainer)
        inputs = {key: arrays[key][:size] for key in trainer.input_names}
        shape = tuple(trainer.predict(inputs)[output].shape)
        if goal.kind == CLASSES and (shape[0], *shape[2:]) != (size, *labels.shape[1:]):
            raise FeedError(
                f"labels of shape {list(labels[:size].shape)} do not fit scores of shape "
                f"{list(shape)}, whose second axis are the classes\n{TOKEN_HINT}"
            )
    return int(shape[axis] or 0)


def _trial_size(trainer: Trainer) -> int:
    """Samples of a trial: one, or as many as the model was written for."""
    shapes = [argument.shape for argument in trainer.module.runner(training=True).user_inputs]
    sizes = [shape[0] for shape in shapes if shape]
    return next((size for size in sizes if isinstance(size, int)), 1)
