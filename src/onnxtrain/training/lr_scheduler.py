"""Learning rate schedules for an Optimizer."""

from __future__ import annotations

from onnxtrain.training.optimizer import Optimizer


class LinearLRScheduler:
    """Warms up linearly, then goes down linearly to zero.

    With k steps taken: initial·k/warmup while k < warmup, then
    initial·max(0, (total - k)/max(1, total - warmup)).

    Args:
        optimizer: Whose learning rate is set.
        warmup_step_count: Steps of warm-up.
        total_step_count: Steps until the rate is zero, the warm-up included.
        initial_lr: The highest rate.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
    ) -> None:
        if total_step_count < warmup_step_count:
            raise ValueError(
                f"total_step_count ({total_step_count}) is less than "
                f"warmup_step_count ({warmup_step_count})"
            )
        self._optimizer = optimizer
        self._warmup = warmup_step_count
        self._total = total_step_count
        self._initial = initial_lr
        optimizer.state.initial_learning_rate = initial_lr
        self.step()

    def step(self) -> None:
        """Set the learning rate for the number of updates made so far."""
        self._optimizer.set_learning_rate(self._initial * self.factor(self._optimizer.steps_taken))

    def factor(self, taken: int) -> float:
        """The share of the highest rate after a number of updates."""
        if taken < self._warmup:
            return taken / max(1, self._warmup)
        return max(0.0, (self._total - taken) / max(1, self._total - self._warmup))
