"""Data for a trainer: what its step takes, cut into batches, and a part held out."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxtrain.cli.fitting.indices import check_indices
from onnxtrain.cli.fitting.labels import check_labels, hinted
from onnxtrain.cli.fitting.losses import YES_NO
from onnxtrain.data import (
    LABELS,
    Arrays,
    Batches,
    Classes,
    Order,
    Pictures,
    Rows,
    Slot,
    bind,
    complete,
    parts,
    read,
    split,
)
from onnxtrain.errors import FeedError
from onnxtrain.graph.bindings import dimensions

if TYPE_CHECKING:
    from onnxtrain.cli.fitting.asked import Run
    from onnxtrain.cli.fitting.losses import Goal
    from onnxtrain.runtime.plan import Argument
    from onnxtrain.training.trainer import Trainer

DEFAULT_BATCH = 32
"""Samples a step, where neither the user nor the model says how many."""


@dataclasses.dataclass(frozen=True)
class Feeding:
    """Batches to train on, and batches to judge by.

    Attributes:
        training: One batch an update.
        size: Samples that pass through the model at a time; a batch may have several times that.
        validation: Batches to judge by.
        classes: Words of the data that stand for classes.
    """

    training: Batches
    size: int
    validation: Batches | None
    classes: Classes


def feeding(trainer: Trainer, asked: Run, goal: Goal) -> Feeding:
    """Read the data of a run and tie it to the inputs of a trainer's step."""
    slots = slots_of(trainer, goal)
    classes: Classes = {}
    arrays = _arrays(asked.data, trainer, asked, goal, slots, classes)
    firsts = {slot.shape[0] for slot in slots if slot.shape}
    size, fixed = batch_size(firsts, asked.batch_size)
    held: dict[str, Any] = {}
    if asked.val_data:
        held = _arrays(asked.val_data, trainer, asked, goal, slots, classes)
    elif asked.val_split:
        arrays, held = split(arrays, asked.val_split, asked.seed)
    _check_size(arrays, asked.batch_size)
    return Feeding(
        _batches(arrays, size * asked.accumulate, asked.seed, size if fixed else None),
        size,
        _batches(held, size, asked.seed, size if fixed else None) if held else None,
        classes,
    )


def _arrays(
    source: str,
    trainer: Trainer,
    asked: Run,
    goal: Goal,
    slots: Sequence[Slot],
    classes: Classes,
) -> dict[str, Any]:
    """The arrays of a source by input, with labels that are there in the model."""
    pictures = Pictures(
        asked.image_size, not asked.image_stretch, asked.image_mean, asked.image_std
    )
    option = "--data" if source is asked.data else "--val-data"
    data = complete(read(source, slots, pictures, asked.ignore, option), asked.missing)
    others = _for_function(data, slots, classes) if goal.is_function else {}
    left = {name: array for name, array in data.values.items() if name not in others}
    with hinted(trainer, goal):
        arrays = bind(dataclasses.replace(data, values=left), slots, asked.chosen, classes)
    if goal.is_function:
        arrays = {**others, **arrays}
    check_indices(trainer, arrays)
    return check_labels(trainer, goal, arrays, asked.first_label)


def _for_function(data: Arrays, slots: Sequence[Slot], classes: Classes) -> dict[str, Any]:
    """What a torch function may want beside the inputs, under its own name.

    Columns of a table are inputs, unless they have a name that only targets have.
    """
    taken = {name for slot in slots for name in (slot.name, *slot.aliases)}
    names = [n for n in data.values if n not in taken and (not data.tabular or n in LABELS)]
    return {name: _numbers(name, data.values[name], classes) for name in names}


def _numbers(name: str, array: Any, classes: Classes) -> Any:
    if array.dtype.kind != "U":
        return array
    slot = Slot(name, np.dtype(np.int64))
    return bind(Arrays({name: array}, False, name), [slot], None, classes)[name]


def slots_of(trainer: Trainer, goal: Goal) -> list[Slot]:
    """What a step takes: the model's inputs and what the loss compares with."""
    arguments = trainer.module.runner(training=True).user_inputs
    slots = [_slot(argument, trainer.loss_input_names) for argument in arguments]
    if goal.kind != YES_NO:
        return slots
    return [dataclasses.replace(slot, words=2) if slot.aliases else slot for slot in slots]


def _slot(argument: Argument, loss_inputs: Sequence[str]) -> Slot:
    dtype = getattr(argument.type, "dtype", None)
    if dtype is None:
        raise FeedError(f"input '{argument.name}' is no tensor; it cannot be fed from a file")
    shape = dimensions(argument.shape)
    aliases = LABELS if argument.name in loss_inputs and len(loss_inputs) == 1 else ()
    return Slot(argument.name, np.dtype(dtype.numpy()), shape, aliases)


def batch_size(firsts: Collection[int | None], asked: int | None) -> tuple[int, bool]:
    """The batch size, and whether the model was written for it alone.

    Args:
        firsts: Sizes of the inputs' first axes, None for free ones.
        asked: What the user wants, None for any.
    """
    fixed = {size for size in firsts if size is not None}
    if len(fixed) > 1:
        raise FeedError(
            f"the inputs of the model have batches of different sizes: {sorted(fixed)}\n"
            "  the first axis of every input must count samples"
        )
    if not fixed:
        return asked or DEFAULT_BATCH, False
    size = fixed.pop()
    if size == 0:
        raise FeedError(
            "the inputs of the model take batches of 0 samples\n"
            "  export it with a free first dimension"
        )
    if asked not in (None, size):
        raise FeedError(
            f"the model takes batches of {size} samples only, not of {asked}\n"
            f"  leave out --batch-size, or add --accumulate N for updates of N·{size} samples"
        )
    return size, True


def _check_size(arrays: Mapping[str, Any], asked: int | None) -> None:
    samples = len(next(iter(arrays.values())))
    if asked is not None and asked > samples:
        raise FeedError(
            f"{samples} samples do not fill one batch of {asked}\n"
            f"  give  --batch-size {samples}  or less, or more data"
        )


def _batches(arrays: Mapping[str, Any], size: int, seed: int, fixed: int | None) -> Batches:
    """Batches of a size; those of a model that takes a fixed number consist of such batches."""
    samples = len(next(iter(arrays.values())))
    return Batches(arrays, Order(samples, size, seed, fixed is not None, fixed or 1))


def digest(batches: Batches | None) -> str | None:
    """A short name for the exact content and order of data."""
    if batches is None:
        return None
    sha = hashlib.sha256()
    for name, array in sorted(batches.arrays.items()):
        sha.update(f"{name} {array.dtype} {array.shape}".encode())
        identity = array.identity if isinstance(array, Rows) else None
        if identity is not None:
            sha.update(identity)
            continue
        for part in parts(array):
            sha.update(np.ascontiguousarray(part).view(np.uint8).reshape(-1).data)
    return sha.hexdigest()[:16]


def accuracy(trainer: Trainer, batches: Batches) -> float:
    """Share of the labels that the first output's largest score is right about."""
    from onnxtrain.cli.fitting.losses import CLASSES, Goal
    from onnxtrain.cli.fitting.metrics import measure
    from onnxtrain.cli.fitting.ranks import Ranks

    goal = Goal("cross_entropy", "cross_entropy", CLASSES)
    return measure(trainer, batches, goal, ("accuracy",), Ranks())["val_accuracy"]
