"""Figures for held-out data, gathered over batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnxtrain.cli.losses import CLASSES, IGNORED, NUMBERS, TOKENS, YES_NO, Goal, token_input
from onnxtrain.data import Batches
from onnxtrain.errors import OptionError
from onnxtrain.training.trainer import Trainer

DEFAULTS: dict[str | None, tuple[str, ...]] = {
    CLASSES: ("accuracy",),
    TOKENS: ("accuracy", "perplexity"),
    NUMBERS: ("mae",),
    YES_NO: ("accuracy",),
}
HIGHER = ("accuracy", "f1")
"""Figures that are better the higher they are; all others the lower."""


class Accuracy:
    """Share of right answers."""

    def __init__(self) -> None:
        self._right, self._count = 0, 0

    def add(self, answers: torch.Tensor, targets: torch.Tensor) -> None:
        """Count a batch."""
        self._right += int((answers == targets).sum())
        self._count += targets.numel()

    def value(self) -> float:
        """right/all."""
        return self._right / max(self._count, 1)


class F1:
    """Mean over the classes that occur of 2·hits/(answers + targets)."""

    def __init__(self) -> None:
        self._hits: dict[int, int] = {}
        self._sizes: dict[int, int] = {}

    def add(self, answers: torch.Tensor, targets: torch.Tensor) -> None:
        """Count a batch."""
        for counts, values in (
            (self._hits, targets[answers == targets]),
            (self._sizes, torch.cat([answers.flatten(), targets.flatten()])),
        ):
            found, sizes = values.unique(return_counts=True)
            for label, size in zip(found.tolist(), sizes.tolist(), strict=True):
                counts[int(label)] = counts.get(int(label), 0) + size

    def value(self) -> float:
        """The mean."""
        scores = [2 * self._hits.get(label, 0) / size for label, size in self._sizes.items()]
        return sum(scores) / max(len(scores), 1)


class Distance:
    """Mean of a power of the distances, and its root."""

    def __init__(self, power: int) -> None:
        self._power, self._sum, self._count = power, 0.0, 0

    def add(self, answers: torch.Tensor, targets: torch.Tensor) -> None:
        """Sum up a batch."""
        self._sum += float((answers.double() - targets.double()).abs().pow(self._power).sum())
        self._count += targets.numel()

    def value(self) -> float:
        """(Σ|a - t|^p / n)^(1/p)."""
        return float((self._sum / max(self._count, 1)) ** (1 / self._power))


METRICS: dict[str, Callable[[], Any]] = {
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
            raise OptionError(
                f"unknown metric '{name}'\n  have  {', '.join((*METRICS, 'perplexity'))}"
            )
        if name not in fitting:
            raise OptionError(
                f"metric '{name}' does not fit loss '{goal.name}'\n"
                f"  fitting  {', '.join(f'--metric {n}' for n in fitting)}"
            )
    return tuple(names) or DEFAULTS.get(goal.kind, ())


def measure(
    trainer: Trainer, batches: Batches, goal: Goal, names: Sequence[str]
) -> dict[str, float]:
    """Loss and metrics on held-out data, by their names with ``val_`` before them."""
    figures = {"val_loss": trainer.evaluate(batches)}
    kept = {name: METRICS[name]() for name in names if name in METRICS}
    if kept:
        for batch in batches:
            answers, targets = _compared(trainer, batch, goal)
            for metric in kept.values():
                metric.add(answers, targets)
    figures.update({f"val_{name}": metric.value() for name, metric in kept.items()})
    if "perplexity" in names:
        figures["val_perplexity"] = math.exp(min(figures["val_loss"], 700.0))
    return figures


def _compared(
    trainer: Trainer, batch: dict[str, Any], goal: Goal
) -> tuple[torch.Tensor, torch.Tensor]:
    """Answers and targets of one batch, without labels that do not count."""
    outputs = trainer.predict({name: batch[name] for name in trainer.input_names})
    scores = outputs[trainer.loss_output_names[0]]
    if goal.name == "next_token":
        targets = torch.as_tensor(batch[token_input(batch)])[:, 1:].to(scores.device)
        return scores[:, :-1].argmax(dim=-1), targets
    given = torch.as_tensor(batch[goal.targets or trainer.loss_input_names[0]])
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
