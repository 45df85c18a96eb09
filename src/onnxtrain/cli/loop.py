"""The loop of ``fit``: steps, validation, checkpoints, and stopping between two steps."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onnxtrain.cli.progress import Display, finite
from onnxtrain.cli.stop import StopSignals
from onnxtrain.data import Batches
from onnxtrain.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from onnxtrain.training.trainer import Trainer

Figures = dict[str, str]


@dataclasses.dataclass
class Loop:
    """Trains until a number of steps is made or a signal asks to stop.

    Attributes:
        trainer: What makes the steps.
        batches: What it is fed.
        total: Steps of the whole training.
        checkpoint: Where its state goes.
        every: Steps between two checkpoints; 0 for none but the one when it is stopped.
        settings: What must be the same when the training is continued.
        validate: Gives figures to show after each epoch.
        position: Steps made so far.
    """

    trainer: Trainer
    batches: Batches
    total: int
    checkpoint: pathlib.Path
    every: int
    settings: dict[str, Any]
    validate: Callable[[], Figures]
    position: int = 0
    _loss: torch.Tensor | None = None

    def resume(self) -> None:
        """Continue where the checkpoint was written.

        Raises:
            CheckpointError: if it belongs to another model or to another training.
        """
        extra = self.trainer.resume(self.checkpoint)
        saved = extra.get("settings")
        if not isinstance(saved, dict) or not isinstance(extra.get("position"), int):
            raise CheckpointError(f"checkpoint '{self.checkpoint}' was not written by fit")
        differing = [
            f"  {key}  {saved.get(key)} then, {value} now"
            for key, value in self.settings.items()
            if saved.get(key) != value
        ]
        if differing:
            raise CheckpointError(
                f"cannot continue from '{self.checkpoint}': the settings are not those of the "
                "training that wrote it\n" + "\n".join(differing)
            )
        self.position = extra["position"]

    def run(self, display: Display) -> signal.Signals | None:
        """Make the steps; gives the signal that ended them early, if one did."""
        with StopSignals() as stop, display:
            while self.position < self.total and stop.received is None:
                self._step(display)
            if stop.received is not None:
                self.save()
            return stop.received

    def _step(self, display: Display) -> None:
        batch = self.batches.at(self.position)
        loss = self.trainer.step(batch)
        self.position += 1
        self._loss = loss
        display.step(loss, len(next(iter(batch.values()))))
        per_epoch = self.batches.order.steps_per_epoch
        if self.position % per_epoch == 0 or self.position == self.total:
            self._end_epoch(display, per_epoch)
        if self.every and self.position % self.every == 0:
            self.save()

    def _end_epoch(self, display: Display, per_epoch: int) -> None:
        epoch, epochs = -(-self.position // per_epoch), -(-self.total // per_epoch)
        figures = {"loss": f"{display.mean_loss():.4g}", **self.validate()}
        display.epoch(f"epoch {epoch}/{epochs}", figures)

    def save(self) -> None:
        """Write a checkpoint, unless training has diverged since the last one.

        Raises:
            OnnxTrainError: if the loss is no number; the last checkpoint is untouched.
        """
        if self._loss is not None:
            finite(float(self._loss), self.position)
        self.trainer.checkpoint(
            self.checkpoint, extra={"settings": self.settings, "position": self.position}
        )
