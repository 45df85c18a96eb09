"""What is seen while training runs: a live bar in a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from onnxtrain.cli.console import console
from onnxtrain.errors import OnnxTrainError

if TYPE_CHECKING:
    import torch

BAR_SECONDS = 0.1
"""Pause between two looks at the loss, since each one waits for the device."""
LINE_SECONDS = 10.0


class Display:
    """Counts steps and samples; how they are shown is the subclasses' part.

    Args:
        total: Steps of the whole training.
        done: Steps made by earlier runs.
        seconds: Least time between two updates of what is shown.

    Attributes:
        closed: Whether nothing can be shown any more, since the reader of a pipe is gone, say.
    """

    def __init__(self, total: int, done: int, seconds: float) -> None:
        self.total, self.done = total, done
        self.closed = False
        self._first = done
        self._seconds = seconds
        self._samples = 0
        self._started = self._shown = time.monotonic()
        self._sum: Any = 0.0
        self._count = 0

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the screen as it is."""

    def step(self, loss: torch.Tensor, samples: int) -> None:
        """Count a step; the loss is only read when it is shown."""
        self.done += 1
        self._samples += samples
        self._sum = self._sum + loss.detach().double()
        self._count += 1
        if time.monotonic() - self._shown >= self._seconds:
            self.show(finite(float(loss), self.done))
            self._shown = time.monotonic()

    def mean_loss(self) -> float:
        """Mean loss of the steps since it was last asked for."""
        mean = float(self._sum) / max(self._count, 1)
        self._sum, self._count = 0.0, 0
        return finite(mean, self.done)

    def partial(self) -> tuple[float, int]:
        """Sum and number of the losses since the mean was last asked for."""
        return float(self._sum), self._count

    def restore(self, total: float, count: int) -> None:
        """Go on from a sum of an earlier run, so that the next mean is that of all steps."""
        self._sum, self._count = total, count

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self._samples / max(time.monotonic() - self._started, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Time that the remaining steps will take at the present speed."""
        made = self.done - self._first
        spent = time.monotonic() - self._started
        return spent / made * (self.total - self.done) if made else math.nan

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """With: what cannot be written is lost, and what follows goes nowhere."""
        try:
            yield
        except OSError:
            self.closed = True
            with contextlib.suppress(OSError):  # stdout may be no file
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def show(self, loss: float) -> None:
        """Show the state after a step."""

    def epoch(self, name: str, figures: Mapping[str, str]) -> None:
        """Show the figures of an epoch for good."""


class Bar(Display):
    """A live progress bar."""

    def __init__(self, total: int, done: int, label: str = "") -> None:
        super().__init__(total, done, BAR_SECONDS)
        from rich import progress

        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("loss {task.fields[loss]}"),
            progress.TextColumn("{task.fields[rate]} samples/s"),
            progress.TextColumn("{task.fields[left]} left"),
            console=console(),
        )
        self._task = self._progress.add_task(
            label or "training", total=total, completed=done, loss="-", rate="-", left="-:--:--"
        )

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.writing():
            self._progress.update(self._task, completed=self.done)
            self._progress.stop()

    def show(self, loss: float) -> None:
        """Move the bar."""
        with self.writing():
            self._progress.update(
                self._task,
                completed=self.done,
                loss=f"{loss:.4g}",
                rate=f"{self.rate:,.0f}",
                left=duration(self.seconds_left),
            )

    def epoch(self, name: str, figures: Mapping[str, str]) -> None:
        """Print a line above the bar."""
        with self.writing():
            self._progress.console.print(line(name, figures), markup=False)


class Lines(Display):
    """Plain lines: one an epoch, and one in between when an epoch takes long."""

    def __init__(self, total: int, done: int) -> None:
        super().__init__(total, done, LINE_SECONDS)

    def show(self, loss: float) -> None:
        """Print the state."""
        figures = {"loss": f"{loss:.4g}", **self._pace()}
        with self.writing():
            print(line(f"step {self.done}/{self.total}", figures), flush=True)

    def epoch(self, name: str, figures: Mapping[str, str]) -> None:
        """Print the figures."""
        with self.writing():
            print(line(name, {**figures, **self._pace()}), flush=True)

    def _pace(self) -> dict[str, str]:
        return {"samples/s": f"{self.rate:,.0f}", "left": duration(self.seconds_left)}


def display(total: int, done: int = 0, visible: bool = True) -> Display:
    """A bar if stdout is a terminal, lines otherwise; or nothing that is seen."""
    if not visible:
        return Display(total, done, math.inf)
    return Bar(total, done) if console().is_terminal else Lines(total, done)


def line(name: str, figures: Mapping[str, str]) -> str:
    """One line of figures."""
    return "  ".join([name, *(f"{key} {value}" for key, value in figures.items())])


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    if not math.isfinite(seconds):
        return "-:--:--"
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def finite(loss: float, step: int) -> float:
    """The loss, if it is a number.

    Raises:
        OnnxTrainError: if training has diverged; going on would only spread it.
    """
    if math.isfinite(loss):
        return loss
    raise OnnxTrainError(
        f"the loss is {loss} after step {step}\n"
        "  lower the learning rate, limit gradients with --clip-grad-norm, or look for "
        "infinities in the data"
    )
