"""Learning rate schedules for an Optimizer: a linear warm-up, then constant or down in a curve."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from numbers import Integral

from onnxtrain.errors import OptionError
from onnxtrain.onnxblock.numbers import check_number
from onnxtrain.training.optimizer import Optimizer


class LRScheduler(ABC):
    """Sets the rate of an optimizer from the number of updates it has made.

    With k updates made: initial·k/warmup while k < warmup, then initial·decay(left), where
    left = max(0, (total - k)/max(1, total - warmup)) goes from 1 to 0 and stays there. The rate
    is set when the schedule is made and by every ``step()``.

    Args:
        optimizer: Whose learning rate is set.
        warmup_step_count: Steps of warm-up.
        total_step_count: Steps until the end of the schedule, the warm-up included.
        initial_lr: The highest rate.

    Raises:
        OptionError: if a count is negative, the whole is shorter than the warm-up, or a number is
            none.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise OptionError(f"a schedule sets the rate of an Optimizer, not of {optimizer!r}")
        for name, count in (
            ("warmup_step_count", warmup_step_count),
            ("total_step_count", total_step_count),
        ):
            if not isinstance(count, Integral):
                raise OptionError(f"{name} is a whole number of steps, not {count!r}")
        check_number("initial_lr", initial_lr)
        if warmup_step_count < 0:
            raise OptionError(f"warmup_step_count is {warmup_step_count}, must not be negative")
        if total_step_count < warmup_step_count:
            raise OptionError(
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
            return taken / self._warmup
        left = max(0.0, (self._total - taken) / max(1, self._total - self._warmup))
        return self.decay(left)

    @abstractmethod
    def decay(self, left: float) -> float:
        """The share of the highest rate when a share of the steps after the warm-up is left."""


class LinearLRScheduler(LRScheduler):
    """Warms up, then goes down in a straight line to zero."""

    def decay(self, left: float) -> float:
        """``left``."""
        return left


class CosineLRScheduler(LRScheduler):
    """Warms up, then goes down to ``final_factor`` of the rate in half a wave of the cosine."""

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
        final_factor: float = 0.0,
    ) -> None:
        check_number("final_factor", final_factor)
        self._final = final_factor
        super().__init__(optimizer, warmup_step_count, total_step_count, initial_lr)

    def decay(self, left: float) -> float:
        """``final + (1 - final)·(1 - cos(π·left))/2``."""
        return self._final + (1 - self._final) * (1 - math.cos(math.pi * left)) / 2


class PolynomialLRScheduler(LRScheduler):
    """Warms up, then goes down to ``final_factor`` of the rate along a power of what is left."""

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
        power: float = 1.0,
        final_factor: float = 0.0,
    ) -> None:
        check_number("power", power)
        check_number("final_factor", final_factor)
        self._power = power
        self._final = final_factor
        super().__init__(optimizer, warmup_step_count, total_step_count, initial_lr)

    def decay(self, left: float) -> float:
        """``final + (1 - final)·left^power``."""
        return float(self._final + (1 - self._final) * left**self._power)


class ConstantLRScheduler(LRScheduler):
    """Warms up, then stays at the highest rate."""

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int | None = None,
        initial_lr: float = 1e-3,
    ) -> None:
        total = warmup_step_count if total_step_count is None else total_step_count
        super().__init__(optimizer, warmup_step_count, total, initial_lr)

    def decay(self, left: float) -> float:
        """1, whatever is left."""
        del left
        return 1.0
