"""The best figure so far, and when to give up waiting for a better one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from onnxtrain.errors import OptionError


@dataclasses.dataclass
class Watch:
    """Looks at one figure after every validation.

    Attributes:
        monitor: Name of the figure.
        higher: Whether a higher figure is better.
        patience: Validations without a better figure before training stops; None for no end.
        best: The best figure.
        step: The update after which it was seen.
        bad: Validations since then.
    """

    monitor: str
    higher: bool
    patience: int | None = None
    best: float | None = None
    step: int = 0
    bad: int = 0

    def see(self, figures: Mapping[str, float], step: int) -> bool:
        """Note the figures of a validation; whether they are the best so far.

        Raises:
            OptionError: if the watched figure is not among them.
        """
        if self.monitor not in figures:
            raise OptionError(
                f"there is no figure '{self.monitor}' to watch\n"
                f"  have  {', '.join(f'--monitor {name}' for name in figures)}"
            )
        value = figures[self.monitor]
        if math.isnan(value) or not self._better(value):
            self.bad += 1
            return False
        self.best, self.step, self.bad = value, step, 0
        return True

    def _better(self, value: float) -> bool:
        if self.best is None:
            return True
        return value > self.best if self.higher else value < self.best

    @property
    def stops(self) -> bool:
        """Whether the wait is over."""
        return self.patience is not None and self.bad >= self.patience

    def state(self) -> dict[str, Any]:
        """What a continued run must know."""
        return {"monitor": self.monitor, "best": self.best, "step": self.step, "bad": self.bad}

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Go on from a saved state; whether it can: figures of another name tell nothing."""
        if state.get("monitor", self.monitor) != self.monitor:
            return False
        self.best, self.step, self.bad = state["best"], state["step"], state["bad"]
        return True

    def forget(self) -> None:
        """Begin anew."""
        self.best, self.step, self.bad = None, 0, 0
