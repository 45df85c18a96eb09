"""Several losses as one."""

from __future__ import annotations

from collections.abc import Sequence

from onnxtrain.errors import LossError
from onnxtrain.onnxblock import blocks
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.edit import number


class WeightedSum(Block):
    """``sum_i weight_i * loss_i(output_i, target_i)``, a loss for every output of the model.

    Its results are the sum and after it every loss by itself, so that each can be watched.

    Args:
        losses: one loss for each output, in the order of the outputs.
        weights: their factors; 1 by default.
        target_names: names of the targets; ``<output>_target`` by default.
    """

    def __init__(
        self,
        losses: Sequence[Block],
        weights: Sequence[float] | None = None,
        target_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.losses = list(losses)
        self.weights = [1.0] * len(self.losses) if weights is None else list(weights)
        self.target_names = None if target_names is None else list(target_names)
        for kind, given in (("weights", self.weights), ("target_names", self.target_names)):
            if given is not None and len(given) != len(self.losses):
                raise LossError(f"{len(self.losses)} losses have {len(given)} {kind}")
        if not self.losses:
            raise LossError("there is no loss to add up")

    def build(self, *output_names: str) -> tuple[str, ...]:
        """Add the losses; targets that do not exist become graph inputs.

        Raises:
            LossError: if there are not as many outputs as losses.
        """
        if len(output_names) != len(self.losses):
            raise LossError(
                f"{len(self.losses)} losses cannot take {len(output_names)} outputs "
                f"({', '.join(output_names)})\n  name the outputs, one for each loss"
            )
        targets = self.target_names or [f"{name}_target" for name in output_names]
        pairs = zip(self.losses, output_names, targets, strict=True)
        parts = [str(loss(name, target)) for loss, name, target in pairs]
        total = ""
        for part, weight in zip(parts, self.weights, strict=True):
            term = blocks.Mul()(number(self.base, weight, part), part)
            total = str(blocks.Add()(total, term)) if total else str(term)
        return (total, *parts)
