"""Loss scaling: gradients of a scaled loss do not become 0 in float16.

Scale, counters and the decision to skip a step stay on the device, so that no step waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from onnxtrain.errors import OptionError
from onnxtrain.onnxblock.numbers import number_of

FIRST = 2.0**16
SMALLEST, LARGEST = 1.0, 2.0**24
WINDOW = 2000
"""Finite steps in a row after which the scale is doubled."""


class LossScale:
    """A scale of the loss; steps whose gradients overflow are skipped.

    Args:
        device: Where it lives.
        first: The first scale.
        dynamic: Whether the scale is halved after an overflow, and doubled after ``window`` finite
            steps in a row.
        window: How many steps that are.
        smallest: The smallest scale.
        largest: The largest scale.

    Attributes:
        scale: The scale, a float32 tensor of no dimensions.
        finite: Whether the last gradients were finite.
        skipped: How many steps were skipped.
    """

    def __init__(
        self,
        device: torch.device,
        first: float = FIRST,
        dynamic: bool = True,
        window: int = WINDOW,
        smallest: float = SMALLEST,
        largest: float = LARGEST,
    ) -> None:
        number = number_of(first)
        if number is None or number <= 0 or number_of(1 / number) is None:
            raise OptionError(
                f"a loss scale must be a finite number above 0, not {first!r}\n"
                f"  give  {FIRST:g}, say, or 'dynamic'"
            )
        self.dynamic = dynamic
        self._window = window
        self._bounds = (smallest, largest)
        self.scale = torch.full((), min(number, largest), dtype=torch.float32, device=device)
        self._stable = torch.zeros((), dtype=torch.int32, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._overflow = torch.zeros((), dtype=torch.float32, device=device)
        self.finite = torch.ones(1, dtype=torch.bool, device=device)
        self._moved: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] = []

    def keep(self, moved: Sequence[torch.Tensor]) -> None:
        """Before a step, keep tensors that it changes before it is known whether it is skipped.

        They must be the same ones in every step.
        """
        if not self._moved:
            self._moved, self._kept = list(moved), [tensor.clone() for tensor in moved]
        elif moved:
            torch._foreach_copy_(self._kept, self._moved)

    def unscale(self, gradients: Sequence[torch.Tensor]) -> None:
        """Divide gradients by the scale, in place, and find out whether they are finite."""
        self._overflow.zero_()
        torch._amp_foreach_non_finite_check_and_unscale_(
            list(gradients), self._overflow, self.scale.reciprocal()
        )
        self.finite.copy_(self._overflow == 0)

    def chosen(
        self, new: Sequence[torch.Tensor], old: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The new values, or the old ones if the step is skipped."""
        pairs = zip(new, old, strict=True)
        return [torch.where(self.finite.reshape(()), a, b) for a, b in pairs]

    def update(self) -> None:
        """Count the step that was made or skipped, and take the scale for the next one.

        After a step that is skipped, tensors that were kept are what they were before it.
        """
        if self._moved:
            torch._foreach_copy_(self._moved, self.chosen(self._moved, self._kept))
        self.skipped.add_(self._overflow.to(torch.int64))
        if self.dynamic:
            torch._amp_update_scale_(
                self.scale, self._stable, self._overflow, 2.0, 0.5, self._window
            )
            self.scale.clamp_(*self._bounds)

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps of a scale that changes: live tensors by name."""
        return {"scale": self.scale, "stable": self._stable} if self.dynamic else {}


@runtime_checkable
class ScaleRule(Protocol):
    """What a scaler says about scales, such as ``amp.DynamicLossScaler``."""

    automatic_update: bool
    up_scale_window: int
    min_loss_scale: float
    max_loss_scale: float

    @property
    def loss_scale(self) -> float:
        """The first scale."""


Scaling = float | str | ScaleRule | None
"""What ``loss_scale=`` may be."""


def loss_scale_of(option: Scaling, precision: str, device: torch.device) -> LossScale | None:
    """The loss scale that an option of a trainer asks for.

    Args:
        option: ``dynamic``, a fixed number, the rule of a scaler, None for none, or ``auto``:
            dynamic for float16.
        precision: The trainer's precision.
        device: Where it lives.

    Raises:
        OptionError: if it is none of these.
    """
    if option == "auto":
        option = "dynamic" if precision == "fp16" else None
    if option is None:
        return None
    if option == "dynamic":
        return LossScale(device)
    if isinstance(option, ScaleRule):
        bounds = (option.min_loss_scale, option.max_loss_scale)
        first, moves = option.loss_scale, option.automatic_update
        return LossScale(device, first, moves, option.up_scale_window, *bounds)
    if isinstance(option, bool) or not isinstance(option, (int, float)):
        raise OptionError(f"loss_scale is 'dynamic', a positive number or None, not {option!r}")
    return LossScale(device, option, dynamic=False, largest=math.inf)
