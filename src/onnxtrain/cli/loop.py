"""The loop of ``fit``: updates, validation, checkpoints, and stopping between two updates."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from onnxtrain.cli.metrics import shown
from onnxtrain.cli.progress import Display, finite
from onnxtrain.cli.recording import History, Recorder
from onnxtrain.cli.stop import StopSignals
from onnxtrain.cli.watch import Watch
from onnxtrain.data import Batches, prefetch
from onnxtrain.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from onnxtrain.training.lr_scheduler import LRScheduler
    from onnxtrain.training.trainer import Trainer

Figures = dict[str, float]


@dataclasses.dataclass
class Loop:
    """Trains until a number of updates is made, nothing gets better, or a signal asks to stop.

    Attributes:
        trainer: What makes the updates.
        batches: What it is fed, one batch an update.
        size: Samples that pass through the model at a time.
        total: Updates of the whole training.
        checkpoint: Where its state goes.
        every: Updates between two checkpoints; 0 for none but the one when it is stopped.
        settings: What must be the same when the training is continued.
        validate: Gives figures on held-out data; None if there is none.
        judge_every: Updates between two validations.
        schedule: Makes the schedule of the learning rate; None for a constant one.
        watch: Tells the best figures; None if there are none.
        best: Where the state with the best figures goes; None if it is not kept.
        recorders: Write figures down.
        log_every: Updates between two records of the loss.
        history: The figures so far.
        position: Updates made so far.
    """

    trainer: Trainer
    batches: Batches
    size: int
    total: int
    checkpoint: pathlib.Path
    every: int
    settings: dict[str, Any]
    validate: Callable[[], Figures] | None
    judge_every: int
    schedule: Callable[[], LRScheduler] | None = None
    watch: Watch | None = None
    best: pathlib.Path | None = None
    recorders: Sequence[Recorder] = ()
    log_every: int = 10
    history: History = dataclasses.field(default_factory=History)
    position: int = 0
    _loss: torch.Tensor | None = None
    _partial: tuple[float, int] = (0.0, 0)
    _display: Display | None = None
    _scheduler: LRScheduler | None = None

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
            f"  {key}  {saved.get(key)} then, {self.settings.get(key)} now"
            for key in (*self.settings, *(key for key in saved if key not in self.settings))
            if saved.get(key) != self.settings.get(key)
        ]
        if differing:
            raise CheckpointError(
                f"cannot continue from '{self.checkpoint}': the settings are not those of the "
                "training that wrote it\n" + "\n".join(differing)
            )
        self.position = extra["position"]
        total, count = extra.get("losses", (0.0, 0))
        self._partial = (float(total), int(count))
        if self.watch is not None and isinstance(extra.get("watch"), dict):
            self.watch.restore(extra["watch"])
        if isinstance(extra.get("history"), dict):
            self.history.restore(extra["history"])

    @property
    def ended(self) -> bool:
        """Whether all updates are made, or waiting for better figures is over."""
        return self.position >= self.total or (self.watch is not None and self.watch.stops)

    def run(self, display: Display) -> signal.Signals | None:
        """Make the updates; gives the signal that ended them early, if one did."""
        self._display = display
        display.restore(*self._partial)
        if self.schedule is not None:
            self._scheduler = self.schedule()
        recorders = (self.history, *self.recorders)
        for recorder in recorders:
            recorder.begin(self.position)
        try:
            with StopSignals() as stop, display, self._upcoming() as upcoming:
                while not self.ended and stop.received is None:
                    self._step(display, next(upcoming))
                if stop.received is not None:
                    self.save()
                return stop.received
        finally:
            for recorder in recorders:
                recorder.close()

    def _upcoming(self) -> AbstractContextManager[Iterator[dict[str, Any]]]:
        """Batches from the position on; a GPU gets the next ones while a step runs."""
        source = (self.batches.at(step) for step in range(self.position, self.total))
        if self.trainer.device.type != "cuda":
            return nullcontext(source)
        inputs = self.trainer.module.runner(training=True).user_inputs
        return prefetch(source, self.trainer.device, host=[a.name for a in inputs if a.host])

    def _step(self, display: Display, batch: dict[str, Any]) -> None:
        rate = self.trainer.lr
        loss = self.trainer.step(self._parts(batch))
        if self._scheduler is not None:
            self._scheduler.step()
        self.position += 1
        self._loss = loss
        display.step(loss, len(next(iter(batch.values()))))
        if self.position % self.log_every == 0:
            self._record({"step": self.position, "loss": float(loss), "lr": rate})
        if self.position % self.judge_every == 0 or self.position == self.total:
            self._judge(display)
        if self.every and self.position % self.every == 0:
            self.save()

    def _parts(self, batch: dict[str, Any]) -> Any:
        """A batch as it is, or in parts that fit through the model one after the other."""
        samples = len(next(iter(batch.values())))
        if samples <= self.size:
            return batch
        return [
            {name: array[first : first + self.size] for name, array in batch.items()}
            for first in range(0, samples, self.size)
        ]

    def _record(self, entry: dict[str, Any]) -> None:
        for recorder in (self.history, *self.recorders):
            recorder.add(entry)

    def _judge(self, display: Display) -> None:
        """Show and record mean loss and validation, and keep the best state."""
        per_epoch = self.batches.order.steps_per_epoch
        epoch, epochs = -(-self.position // per_epoch), -(-self.total // per_epoch)
        mean = display.mean_loss()
        figures = self.validate() if self.validate is not None else {}
        self._record({"step": self.position, "epoch": epoch, "mean_loss": mean, **figures})
        texts = {"loss": f"{mean:.4g}", **shown(figures)}
        better = self.watch is not None and self.watch.see(figures, self.position)
        if better and self.best is not None:
            self._save(self.best)
            texts["best"] = "so far"
        display.epoch(f"epoch {epoch}/{epochs}", texts)

    def save(self) -> None:
        """Write a checkpoint, unless training has diverged since the last one.

        Raises:
            OnnxTrainError: if the loss is no number; the last checkpoint is untouched.
        """
        self._save(self.checkpoint)

    def _save(self, path: pathlib.Path) -> None:
        if self._loss is not None:
            finite(float(self._loss), self.position)
        partial = self._display.partial() if self._display is not None else self._partial
        extra = {
            "settings": self.settings,
            "position": self.position,
            "losses": list(partial),
            "watch": self.watch.state() if self.watch is not None else None,
            "history": self.history.state(),
        }
        self.trainer.checkpoint(path, extra=extra)
