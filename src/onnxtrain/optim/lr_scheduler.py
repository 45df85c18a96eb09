"""Schedules as functions of the step: warm-up over a share of all steps, then a curve.

They hold no optimizer. ``get_lr(info)`` takes any object with ``optimization_step`` and
``optimizer_config.lr``. Schedules that drive an Optimizer are in ``onnxtrain.api``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Protocol

from onnxtrain.optim.config import ConfigError


class HasRate(Protocol):
    """Settings with a learning rate."""

    lr: float


class StepInfo(Protocol):
    """What a schedule wants to know of a step."""

    @property
    def optimization_step(self) -> int:
        """Updates made so far."""

    @property
    def optimizer_config(self) -> HasRate:
        """Settings of the optimizer."""


class WarmupLRScheduler(ABC):
    """With k updates made, W = warmup·total and base rate r: r·k/max(1, W) while k < W.

    Args:
        total_steps: Steps of the whole training.
        warmup: Share of them that is warm-up, in [0, 1).
    """

    def __init__(self, total_steps: int, warmup: float = 0.002) -> None:
        _require(_is_int(total_steps) and total_steps > 0, "total_steps", total_steps)
        _require(isinstance(warmup, float) and 0 <= warmup < 1, "warmup", warmup)
        self.total_steps = total_steps
        self.warmup = warmup
        self._last_lr: list[float] = []

    def get_lr(self, train_step_info: StepInfo) -> list[float]:
        """The learning rate of a step, in a list of one."""
        step, base = train_step_info.optimization_step, train_step_info.optimizer_config.lr
        warm = self.warmup * self.total_steps
        factor = step / max(1, warm) if step < warm else self._factor(step, warm, base)
        return [base * factor]

    def get_last_lr(self) -> list[float]:
        """The rate that the last step got, in a list of one; empty before the first."""
        return self._last_lr

    def _step(self, train_step_info: StepInfo) -> None:
        """Compute and keep the rate of a step."""
        self._last_lr = self.get_lr(train_step_info)

    @abstractmethod
    def _factor(self, step: int, warm: float, base: float) -> float:
        """The share of the base rate after the warm-up."""


class ConstantWarmupLRScheduler(WarmupLRScheduler):
    """Warm-up, then the base rate."""

    def _factor(self, step: int, warm: float, base: float) -> float:
        del step, warm, base
        return 1.0


class CosineWarmupLRScheduler(WarmupLRScheduler):
    """Warm-up, then ``max(0, (1 + cos(2π·cycles·progress))/2)``."""

    def __init__(self, total_steps: int, cycles: float = 0.5, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)
        _require(isinstance(cycles, float) and cycles > 0, "cycles", cycles)
        self.cycles = cycles

    def _factor(self, step: int, warm: float, base: float) -> float:
        del base
        progress = (step - warm) / max(1, self.total_steps - warm)
        return max(0.0, 0.5 * (1 + math.cos(2 * math.pi * self.cycles * progress)))


class LinearWarmupLRScheduler(WarmupLRScheduler):
    """Warm-up, then a straight line that ends at 0 after all steps."""

    def _factor(self, step: int, warm: float, base: float) -> float:
        del base
        return max(0.0, (self.total_steps - step) / max(1, self.total_steps - warm))


class PolyWarmupLRScheduler(WarmupLRScheduler):
    """Warm-up, then ``(r - lr_end)·(1 - progress)^power + lr_end``; lr_end after all steps."""

    def __init__(
        self, total_steps: int, lr_end: float = 1e-7, power: float = 1.0, warmup: float = 0.002
    ) -> None:
        super().__init__(total_steps, warmup)
        _require(isinstance(lr_end, float) and lr_end >= 0, "lr_end", lr_end)
        _require(isinstance(power, float) and power >= 0, "power", power)
        self.lr_end = lr_end
        self.power = power

    def _factor(self, step: int, warm: float, base: float) -> float:
        if base <= self.lr_end:
            raise ConfigError(f"lr_end ({self.lr_end}) must be less than the rate ({base})")
        if step > self.total_steps:
            return self.lr_end / base
        left = 1 - (step - warm) / (self.total_steps - warm)
        return float(((base - self.lr_end) * left**self.power + self.lr_end) / base)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(holds: bool, name: str, value: Any) -> None:
    if not holds:
        raise ConfigError(f"{name} cannot be {value!r}")
