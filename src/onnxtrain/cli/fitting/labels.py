"""Labels that fit the classes of a model, or what to type so that they do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxtrain.cli.fitting.losses import CLASSES, IGNORED, TOKENS, YES_NO
from onnxtrain.data import Rows, parts
from onnxtrain.errors import FeedError

if TYPE_CHECKING:
    from onnxtrain.cli.fitting.losses import Goal
    from onnxtrain.training.trainer import Trainer

LARGEST = 2**31
"""Labels of this size are none that anybody counts from."""
TOKEN_HINT = "  if the classes are the last axis of the scores, use --loss token_cross_entropy"


@contextlib.contextmanager
def hinted(trainer: Trainer, goal: Goal) -> Iterator[None]:
    """With: data that does not fit a loss for classes gets a hint at the loss for tokens."""
    try:
        yield
    except FeedError as error:
        shape = trainer.output_shapes[trainer.loss_output_names[0]]
        if shape is None or len(shape) != 3 or goal.kind not in (CLASSES, TOKENS):
            raise
        hints = [TOKEN_HINT] if goal.kind == CLASSES else []
        if goal.name != "next_token" and "no data for 'labels'" in str(error):
            hints.append("  a language model learns from its tokens alone with --loss next_token")
        raise FeedError("\n".join([str(error), *hints])) from error


def check_labels(
    trainer: Trainer, goal: Goal, arrays: dict[str, Any], first: int
) -> dict[str, Any]:
    """The arrays with labels counted from zero.

    Raises:
        FeedError: if the model has no class for a label.
    """
    name = next(iter(trainer.loss_input_names), None)
    if goal.kind == YES_NO and name in arrays:
        _check_yes_no(name, arrays[name])
    if goal.kind not in (CLASSES, TOKENS) or name is None or name not in arrays:
        if first:
            raise FeedError(f"loss '{goal.name}' has no classes\n  leave out --first-label")
        return arrays
    if not -LARGEST < first < LARGEST:
        raise FeedError(
            f"--first-label is the number of the first class in the data, not {first}\n"
            "  give  --first-label 1, say"
        )
    labels = _moved(arrays[name], first, goal.kind == TOKENS)
    count = _classes(trainer, goal, arrays, labels)
    low, high = _range(labels, goal.kind == TOKENS)
    if low < 0 or high >= count:
        raise FeedError(
            f"'{name}' has labels from {low + first} to {high + first}, the model has {count} "
            f"classes: {first} to {count - 1 + first}\n  {_cure(name, low, high, count, first)}"
        )
    return {**arrays, name: labels}


def _moved(labels: Any, first: int, may_skip: bool) -> Any:
    """Labels counted from zero; those that do not count stay what they are."""
    if not first:
        return labels

    def moved(part: Any) -> Any:
        return np.where(part == IGNORED, part, part - first) if may_skip else part - first

    if isinstance(labels, Rows):
        return labels.changed(moved, labels.shape, labels.dtype)
    return moved(labels)


def _range(labels: Any, may_skip: bool) -> tuple[int, int]:
    """The lowest and the highest label, without those that do not count."""
    lows, highs = [], []
    for part in parts(labels):
        seen = part[part != IGNORED] if may_skip else part
        if seen.size:
            lows.append(int(seen.min()))
            highs.append(int(seen.max()))
    return min(lows, default=0), max(highs, default=0)


def _check_yes_no(name: str, targets: Any) -> None:
    for part in parts(targets):
        if part.size and (part.min() < 0 or part.max() > 1):
            raise FeedError(
                f"'{name}' has values from {part.min():g} to {part.max():g}, bce takes 0 for no "
                "and 1 for yes\n  for numbers use --loss mse, for classes --loss cross_entropy"
            )


def _cure(name: str, low: int, high: int, count: int, first: int) -> str:
    if count == 1:
        return (
            "a model with one score for a sample learns numbers with --loss mse, and yes or no "
            "with --loss bce"
        )
    if high - low < count:
        return f"the data counts from {low + first}: add --first-label {low + first}"
    if low < 0 and not first and high < count:
        return (
            "labels below 0 are of no class: leave such samples out, or let them not count with "
            "--loss module:name\n  where the module has  "
            f"name = onnxblock.loss.CrossEntropyLoss(ignore_index={low})"
        )
    return (
        f"take another array with --map {name}=ARRAY, or a model with {high - low + 1} scores "
        "for a sample"
    )


def _classes(trainer: Trainer, goal: Goal, arrays: dict[str, Any], labels: Any) -> int:
    """How many classes there are, from the model's output or else from a trial of one sample."""
    from onnxtrain.cli.fitting.metrics import scores_of

    output = trainer.loss_output_names[0]
    axis = 1 if goal.kind == CLASSES else -1
    shape = trainer.output_shapes[output]
    told = shape is not None and shape[axis] is not None
    if shape is None or not told or (goal.kind == CLASSES and None in shape[2:]):
        size = _trial_size(trainer)
        inputs = {key: arrays[key][:size] for key in trainer.input_names}
        shape = tuple(scores_of(trainer, inputs).shape)
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
