"""Figures for held-out data, gathered over batches."""

from __future__ import annotations

import abc
import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnxtrain.cli.fitting.losses import CLASSES, IGNORED, NUMBERS, TOKENS, YES_NO, Goal
from onnxtrain.cli.fitting.ranks import Ranks
from onnxtrain.cli.near import nearest
from onnxtrain.data import Batches
from onnxtrain.errors import OptionError
from onnxtrain.onnxblock.loss.token import token_input
from onnxtrain.training.trainer import Trainer

DEFAULTS: dict[str | None, tuple[str, ...]] = {
    CLASSES: ("accuracy",),
    TOKENS: ("accuracy", "perplexity"),
    NUMBERS: ("mae",),
    YES_NO: ("accuracy",),
}
HIGHER = ("accuracy", "f1")
"""Figures that are better the higher they are; all others the lower."""


class Metric(abc.ABC):
    """A figure that is made of sums over batches, which may come from several processes.

    Attributes:
        sums: The sums by name.
    """

    def __init__(self) -> None:
        self.sums: collections.Counter[str] = collections.Counter()

    @abc.abstractmethod
    def add(self, answers: torch.Tensor, targets: torch.Tensor) -> None:
        """Add up a batch."""

    @abc.abstractmethod
    def value(self) -> float:
        """The figure."""


class Accuracy(Metric):
    """Share of right answers."""

    def add(self, answers: torch.Tensor, targets: torch.Tensor) -> None:
        """Count a batch."""
        self.sums["right"] += int((answers == targets).sum())
        self.sums["all"] += targets.numel()

    def value(self) -> float:
        """right/all."""
        return self.sums["right"] / max(self.sums["all"], 1)


class F1(Metric):
    """Mean over the classes that occur of 2·hits/(answers + targets)."""

    def add(self, answers: torch.Tensor, targets: torch.Tensor) -> None:
        """Count a batch."""
        for kind, values in (
            ("hits", targets[answers == targets]),
            ("size", torch.cat([answers.flatten(), targets.flatten()])),
        ):
            found, sizes = values.unique(return_counts=True)
            for label, size in zip(found.tolist(), sizes.tolist(), strict=True):
                self.sums[f"{kind} {int(label)}"] += size

    def value(self) -> float:
        """The mean."""
        sizes = {name: size for name, size in self.sums.items() if name.startswith("size")}
        hits = [self.sums[name.replace("size", "hits")] for name in sizes]
        scores = [2 * hit / size for hit, size in zip(hits, sizes.values(), strict=True)]
        return sum(scores) / max(len(scores), 1)


class Distance(Metric):
    """Mean of a power of the distances, and its root."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self._power = power

    def add(self, answers: torch.Tensor, targets: torch.Tensor) -> None:
        """Sum up a batch."""
        far = (answers.double() - targets.double()).abs().pow(self._power).sum()
        self.sums["far"] += float(far)  # type: ignore[assignment]
        self.sums["all"] += targets.numel()

    def value(self) -> float:
        """(Σ|a - t|^p / n)^(1/p)."""
        return float((self.sums["far"] / max(self.sums["all"], 1)) ** (1 / self._power))


METRICS: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "f1": F1,
    "mae": lambda: Distance(1),
    "rmse": lambda: Distance(2),
}
_FITTING = {
    CLASSES: ("accuracy", "f1", "perplexity"),
    TOKENS: ("accuracy", "f1", "perplexity"),
    NUMBERS: ("mae", "rmse"),
    YES_NO: ("accuracy", "f1"),
}


def chosen(names: Sequence[str], goal: Goal) -> tuple[str, ...]:
    """The metrics of a run, the usual ones if none is named.

    Raises:
        OptionError: if one is unknown or does not fit the loss.
    """
    fitting = _FITTING.get(goal.kind or "", ("perplexity",))
    for name in names:
        if name not in (*METRICS, "perplexity"):
            known = (*METRICS, "perplexity")
            close = nearest(name, known)
            raise OptionError(
                f"unknown metric '{name}'\n  have  {', '.join(known)}"
                + (f"\n  did you mean  --metric {close}" if close else "")
            )
        if name not in fitting:
            raise OptionError(
                f"metric '{name}' does not fit loss '{goal.name}'\n"
                f"  fitting  {', '.join(f'--metric {n}' for n in fitting)}"
            )
    return tuple(names) or DEFAULTS.get(goal.kind, ())


def measure(
    trainer: Trainer, batches: Batches, goal: Goal, names: Sequence[str], ranks: Ranks
) -> dict[str, float]:
    """Loss and metrics on held-out data, by their names with ``val_`` before them.

    Of several processes each one judges some of the batches; all get the figures over all of them.
    """
    figures = {"val_loss": trainer.evaluate(batches.every(ranks.size, ranks.rank))}
    kept = {name: METRICS[name]() for name in names if name in METRICS}
    if kept:
        for batch in batches.every(ranks.size, ranks.rank):
            answers, targets = _compared(trainer, batch, goal)
            for metric in kept.values():
                metric.add(answers, targets)
    for name, metric in kept.items():
        gathered = ranks.gather(metric.sums)
        metric.sums = collections.Counter()
        for sums in gathered:
            metric.sums.update(sums)  # unlike +, this keeps sums that are no number
        figures[f"val_{name}"] = metric.value()
    if "perplexity" in names:
        figures["val_perplexity"] = math.exp(min(figures["val_loss"], 700.0))
    return figures


def scores_of(trainer: Trainer, inputs: dict[str, Any]) -> torch.Tensor:
    """What the loss takes first, for some inputs; maps from labels to scores are rows of scores."""
    found: Any = trainer.predict(inputs)[trainer.loss_output_names[0]]
    if isinstance(found, list):
        return torch.tensor([list(row.values()) for row in found])
    assert isinstance(found, torch.Tensor)
    return found


def _compared(
    trainer: Trainer, batch: dict[str, Any], goal: Goal
) -> tuple[torch.Tensor, torch.Tensor]:
    """Answers and targets of one batch, without labels that do not count."""
    scores = scores_of(trainer, {name: batch[name] for name in trainer.input_names})
    if goal.name == "next_token":
        whole = {name: batch[name].ndim == 2 and batch[name].dtype.kind in "iu" for name in batch}
        targets = torch.as_tensor(batch[str(token_input(whole))])[:, 1:].to(scores.device)
        return scores[:, :-1].argmax(dim=-1), targets
    given = torch.as_tensor(batch[trainer.loss_input_names[0]])
    targets = given.to(scores.device)
    if goal.kind == NUMBERS:
        return scores, targets
    if goal.kind == YES_NO:
        return scores > 0, targets > 0.5
    answers = scores.argmax(dim=-1 if goal.kind == TOKENS else 1)
    counted = targets != IGNORED
    return answers[counted], targets[counted]


def shown(figures: dict[str, float]) -> dict[str, str]:
    """Figures as text: shares in per cent."""
    return {
        name: f"{value:.2%}" if name.removeprefix("val_") in HIGHER else f"{value:.4g}"
        for name, value in figures.items()
    }
