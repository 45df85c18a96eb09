"""How much a loss is scaled, so that small gradients do not become 0 in float16."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from onnxtrain.errors import OptionError


class ScaleError(OptionError, AssertionError):
    """A loss scale is no positive number; an AssertionError too, as the reference raises one."""


class StepInfo(Protocol):
    """What a scaler wants to know of a step."""

    @property
    def all_finite(self) -> bool:
        """Whether all gradients were finite."""


class LossScaler(ABC):
    """A scale, and a rule for the next one.

    Args:
        loss_scale: The first scale.

    Attributes:
        input_name: Input of the model that takes the scale, if it has one.
    """

    def __init__(self, loss_scale: float) -> None:
        self.loss_scale = loss_scale
        self._initial = self._loss_scale
        self.input_name: str | None = None

    @property
    def loss_scale(self) -> float:
        """The scale in use; it must be positive."""
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self._loss_scale = _positive("loss_scale", value)

    def reset(self) -> None:
        """Go back to the first scale."""
        self._loss_scale = self._initial

    @abstractmethod
    def update(self, train_step_info: StepInfo) -> float:
        """The scale for the next step."""


class DynamicLossScaler(LossScaler):
    """Halves the scale when gradients overflow, doubles it after enough steps without.

    Args:
        automatic_update: Whether the scale changes at all.
        loss_scale: The first scale.
        up_scale_window: Finite steps in a row after which the scale is doubled.
        min_loss_scale: The smallest scale.
        max_loss_scale: The largest scale.
    """

    def __init__(
        self,
        automatic_update: bool = True,
        loss_scale: float = float(1 << 16),
        up_scale_window: int = 2000,
        min_loss_scale: float = 1.0,
        max_loss_scale: float = float(1 << 24),
    ) -> None:
        super().__init__(loss_scale)
        self.automatic_update = automatic_update
        self.up_scale_window = up_scale_window
        self.min_loss_scale = _positive("min_loss_scale", min_loss_scale)
        self.max_loss_scale = _positive("max_loss_scale", max_loss_scale)
        self._stable = 0

    def reset(self) -> None:
        """Go back to the first scale, and count finite steps from 0."""
        super().reset()
        self._stable = 0

    def update(self, train_step_info: StepInfo) -> float:
        """The scale for the next step, after one whose gradients were all finite or were not."""
        if not self.automatic_update:
            return self.loss_scale
        if not train_step_info.all_finite:
            self._stable = 0
            self.loss_scale = max(self.min_loss_scale, self.loss_scale / 2)
            return self.loss_scale
        self._stable += 1
        if self._stable >= self.up_scale_window:
            self._stable = 0
            self.loss_scale = min(self.max_loss_scale, self.loss_scale * 2)
        return self.loss_scale

    def state_dict(self) -> dict[str, float]:
        """The scale and the count of finite steps, for a checkpoint."""
        return {"loss_scale": self.loss_scale, "stable_steps": self._stable}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.loss_scale = state["loss_scale"]
        self._stable = int(state["stable_steps"])


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ScaleError(f"'{name}' must be a positive float, not {value!r}")
    return float(value)
