"""The loop of ``fit``: updates, validation, checkpoints, and stopping between two updates."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from onnxtrain.cli.fitting.metrics import shown
from onnxtrain.cli.fitting.progress import Display, finite
from onnxtrain.cli.fitting.ranks import Ranks
from onnxtrain.cli.fitting.recording import History, Recorder
from onnxtrain.cli.fitting.stop import CLOSED, StopSignals
from onnxtrain.cli.fitting.watch import Watch
from onnxtrain.data import Batches, prefetch
from onnxtrain.errors import CheckpointError
from onnxtrain.formats.native import read_manifest

if TYPE_CHECKING:
    import torch

    from onnxtrain.training.lr_scheduler import LRScheduler
    from onnxtrain.training.trainer import Trainer

Figures = dict[str, float]


START_ANEW = (
    "  give the model and the options of that run again, or start anew without --resume and with "
    "another --checkpoint"
)


def settings_of(path: pathlib.Path) -> dict[str, Any]:
    """The settings that a checkpoint of fit was written with.

    Raises:
        CheckpointError: if it cannot be read, or is none of fit.
    """
    try:
        extra: Any = read_manifest(path).get("extra")
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}\n  name the checkpoint of a run with --checkpoint, or start without --resume"
        ) from error
    saved = extra.get("settings") if isinstance(extra, dict) else None
    if not isinstance(saved, dict) or not isinstance(extra.get("position"), int):
        raise CheckpointError(
            f"checkpoint '{path}' was not written by fit\n"
            "  go on from it with Trainer.resume, or start without --resume"
        )
    return saved


def _told(value: object) -> object:
    return "not given" if value is None else value


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
        ranks: The processes that share the work.
        position: Updates made so far.
        note: What a user should know about how it goes on; None if there is nothing.
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
    ranks: Ranks = dataclasses.field(default_factory=Ranks)
    position: int = 0
    note: str | None = None
    _loss: torch.Tensor | None = None
    _partial: tuple[float, int] = (0.0, 0)
    _display: Display | None = None
    _scheduler: LRScheduler | None = None

    def resume(self) -> None:
        """Continue where the checkpoint was written.

        Raises:
            CheckpointError: if it belongs to another model or to another training.
        """
        saved = settings_of(self.checkpoint)
        differing = [
            f"  {key}  {_told(saved.get(key))} then, {_told(self.settings.get(key))} now"
            for key in (*self.settings, *(key for key in saved if key not in self.settings))
            if saved.get(key) != self.settings.get(key)
        ]
        if differing:
            raise CheckpointError(
                f"cannot continue from '{self.checkpoint}': the settings are not those of the "
                "training that wrote it\n" + "\n".join([*differing, START_ANEW])
            )
        try:
            extra = self.trainer.resume(self.checkpoint)
        except CheckpointError as error:
            raise CheckpointError(f"{error}\n{START_ANEW}") from error
        self.position = extra["position"]
        total, count = extra.get("losses", (0.0, 0))
        self._partial = (float(total), int(count))
        if self.watch is not None and isinstance(extra.get("watch"), dict):
            self._watch_on(self.watch, extra["watch"])
        if isinstance(extra.get("history"), dict):
            self.history.restore(extra["history"])

    def _watch_on(self, watch: Watch, state: dict[str, Any]) -> None:
        """Go on comparing with the best figure so far, if it is of this kind and can be kept."""
        if not watch.restore(state):
            if state["best"] is not None:
                self.note = f"{state['monitor']} was watched before; the best {watch.monitor} is "
                self.note += f"that of the validations after step {self.position}"
        elif self.best is not None and watch.best is not None and not self._kept(watch):
            watch.forget()
            self.note = f"'{self.best}' does not hold the best state so far; the best one is that "
            self.note += f"of the validations after step {self.position}"

    def _kept(self, watch: Watch) -> bool:
        """Whether the best state of this training is there, or a later one that will come again."""
        assert self.best is not None
        try:
            extra: Any = read_manifest(self.best).get("extra")
        except CheckpointError:
            return False
        if not isinstance(extra, dict) or extra.get("settings") != self.settings:
            return False
        seen = extra.get("watch") or {}
        same = seen.get("monitor", watch.monitor) == watch.monitor
        return bool(same and extra["position"] >= watch.step)

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
            with self._signals() as stop, display, self._upcoming() as upcoming:
                while not self.ended and self._agreed(stop, display) is None:
                    self._step(display, next(upcoming))
                received = self._agreed(stop, display)
                if received is not None:
                    self.save()
                return received
        finally:
            for recorder in recorders:
                recorder.close()

    def _signals(self) -> StopSignals:
        return StopSignals(one_of_several=self.ranks.size > 1)

    def _agreed(self, stop: StopSignals, display: Display) -> signal.Signals | None:
        """The signal that one of the processes received, so that all of them stop together.

        A run whose output nobody takes any more stops as well, unless it has come to its end.
        """
        unseen = display.closed and not self.ended
        number = self.ranks.highest(stop.received or (CLOSED if unseen else 0))
        return signal.Signals(number) if number else None

    def _upcoming(self) -> AbstractContextManager[Iterator[dict[str, Any]]]:
        """Batches from the position on; a GPU gets the next ones while a step runs."""
        rank, ranks = self.ranks.rank, self.ranks.size
        steps = range(self.position, self.total)
        source = (self.batches.at(step, rank, ranks) for step in steps)
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
        display.step(loss, len(self.batches.order.indices(self.position - 1)))
        if self.position % self.log_every == 0:
            self._record({"step": self.position, "loss": float(loss), "lr": rate})
        if self.position % self.judge_every == 0 or self.position == self.total:
            self._judge(display)
        if self.every and self.position % self.every == 0:
            self.save()

    def _parts(self, batch: dict[str, Any]) -> Any:
        """A batch as it is, or in parts that fit through the model one after the other."""
        samples = len(next(iter(batch.values())))
        if 0 < samples <= self.size:
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

    def save(self, path: pathlib.Path | None = None) -> None:
        """Write a checkpoint, unless training has diverged since the last one.

        Raises:
            OnnxTrainError: if the loss is no number; the last checkpoint is untouched.
        """
        self._save(path or self.checkpoint)

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
