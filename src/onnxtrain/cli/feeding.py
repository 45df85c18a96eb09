"""Data for a trainer: what its step takes, cut into batches, and a part held out."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxtrain.data import Batches, Order, Slot, bind, read, split
from onnxtrain.data.bind import LABELS
from onnxtrain.errors import FeedError

if TYPE_CHECKING:
    from onnxtrain.cli.fit import Run
    from onnxtrain.runtime.plan import Argument
    from onnxtrain.training.trainer import Trainer

DEFAULT_BATCH = 32
"""Samples a step, where neither the user nor the model says how many."""


@dataclasses.dataclass(frozen=True)
class Feeding:
    """Batches to train on, and batches to judge by."""

    training: Batches
    validation: Batches | None


def feeding(trainer: Trainer, asked: Run) -> Feeding:
    """Read the data of a run and tie it to the inputs of a trainer's step."""
    slots = slots_of(trainer)
    arrays = bind(read(asked.data), slots, asked.chosen)
    size, fixed = _batch_size(slots, asked.batch_size)
    held: dict[str, Any] = {}
    if asked.val_split:
        arrays, held = split(arrays, asked.val_split, asked.seed)
    return Feeding(
        _batches(arrays, size, asked.seed, fixed),
        _batches(held, size, asked.seed, fixed) if held else None,
    )


def slots_of(trainer: Trainer) -> list[Slot]:
    """What a step takes: the model's inputs and what the loss compares with."""
    arguments = trainer.module.runner(training=True).user_inputs
    return [_slot(argument, trainer.loss_input_names) for argument in arguments]


def _slot(argument: Argument, loss_inputs: Sequence[str]) -> Slot:
    dtype = getattr(argument.type, "dtype", None)
    if dtype is None:
        raise FeedError(f"input '{argument.name}' is no tensor; it cannot be fed from a file")
    shape = None
    if argument.shape is not None:
        shape = tuple(dim if isinstance(dim, int) else None for dim in argument.shape)
    aliases = LABELS if argument.name in loss_inputs and len(loss_inputs) == 1 else ()
    return Slot(argument.name, np.dtype(dtype.numpy()), shape, aliases)


def _batch_size(slots: Sequence[Slot], asked: int | None) -> tuple[int, bool]:
    """The batch size, and whether the model was written for it alone."""
    sizes = {slot.shape[0] for slot in slots if slot.shape}
    fixed = {size for size in sizes if size is not None}
    if len(fixed) > 1:
        raise FeedError(
            f"the inputs of the model have batches of different sizes: {sorted(fixed)}\n"
            "  the first axis of every input must count samples"
        )
    if not fixed:
        return asked or DEFAULT_BATCH, False
    size = fixed.pop()
    if asked not in (None, size):
        raise FeedError(
            f"the model takes batches of {size} samples only, not of {asked}\n"
            "  leave out --batch-size, or export the model with a free first dimension"
        )
    return size, True


def _batches(arrays: Mapping[str, Any], size: int, seed: int, fixed: bool) -> Batches:
    return Batches(arrays, Order(len(next(iter(arrays.values()))), size, seed, whole=fixed))


def digest(fed: Feeding) -> str:
    """A short name for the exact content and order of the training data."""
    sha = hashlib.sha256()
    for name, array in sorted(fed.training.arrays.items()):
        sha.update(f"{name} {array.dtype} {array.shape}".encode())
        sha.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
    return sha.hexdigest()[:16]


def figures(trainer: Trainer, batches: Batches | None, loss: str) -> dict[str, str]:
    """Loss on held-out data and, for classes, the share that is right."""
    if batches is None:
        return {}
    shown = {"val_loss": f"{trainer.evaluate(batches):.4g}"}
    if loss == "cross_entropy" and set(trainer.input_names) <= batches.arrays.keys():
        shown["val_accuracy"] = f"{accuracy(trainer, batches):.2%}"
    return shown


def accuracy(trainer: Trainer, batches: Batches) -> float:
    """Share of the labels that the first output's largest score is right about."""
    right, count = 0, 0
    (labels,) = trainer.loss_input_names
    for batch in batches:
        inputs = {name: batch[name] for name in trainer.input_names}
        scores = next(iter(trainer.predict(inputs).values()))
        picked = scores.argmax(dim=1).cpu().numpy()
        right += int((picked == batch[labels]).sum())
        count += batch[labels].size
    return right / count
