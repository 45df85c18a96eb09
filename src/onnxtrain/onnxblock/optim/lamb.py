"""LAMB: Adam whose step is as long as the weights it moves, for very large batches."""

from __future__ import annotations

import math

from onnxtrain.errors import OptionError
from onnxtrain.onnxblock import edit
from onnxtrain.onnxblock.block import Block
from onnxtrain.onnxblock.numbers import check_betas, check_number
from onnxtrain.onnxblock.onnxblock import ForwardBlock, Parameters
from onnxtrain.onnxblock.optim.clip import clipped
from onnxtrain.onnxblock.optim.sequences import (
    FIRST_MOMENTS,
    LEARNING_RATE,
    PARAMS,
    SECOND_MOMENTS,
    STEP,
    declare_inputs,
    elements,
    updated,
)
from onnxtrain.types import MS

_MOST = 1024
"""Parameters that one node takes."""


class Lamb(ForwardBlock):
    """The optimizer graph of LAMB.

    ``d = decay * w + (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)``, then
    ``w -= lr * clamp(|w| / |d|, ratio_min, ratio_max) * d`` for every parameter by itself; the
    ratio is 1 where one of the norms is 0. Without bias correction the powers count as 0.
    """

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        ratio_min: float = -math.inf,
        ratio_max: float = math.inf,
        clip_grad: Block | None = None,
    ) -> None:
        super().__init__()
        check_betas(betas)
        check_number("eps", eps)
        check_number("weight_decay", weight_decay)
        if not ratio_min <= ratio_max:
            raise OptionError(
                f"ratio_min ({ratio_min!r}) must not be above ratio_max ({ratio_max!r})"
            )
        self.bias_correction = bias_correction
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.ratios = (ratio_min, ratio_max)
        self.clip_grad = clip_grad

    def build(self, parameters: Parameters) -> tuple[str, ...]:
        """Add inputs and step for (trainable, frozen) parameters.

        Returns:
            Names of the flag, of the new parameters and of both new moments.
        """
        moments = [FIRST_MOMENTS, SECOND_MOMENTS]
        count = declare_inputs(self.base, parameters, moments)
        gradients = clipped(self.clip_grad, count)
        sequences = (PARAMS, gradients, *moments)
        columns = [elements(self.base, name, count) for name in sequences]
        groups = list(zip(*columns, strict=True))
        made: list[tuple[str, str, str]] = []
        for start in range(0, count, _MOST):
            made += self._step(groups[start : start + _MOST])
        weights, first, second = (list(column) for column in zip(*made, strict=True))
        return updated(self.base, {PARAMS: weights, FIRST_MOMENTS: first, SECOND_MOMENTS: second})

    def _step(self, groups: list[tuple[str, ...]]) -> list[tuple[str, str, str]]:
        """Add one node; gives the names of new weights and moments of every group."""
        count, (low, high) = len(groups), self.ratios
        attributes = {
            "alpha": [float(self.betas[0])] * count,
            "beta": [float(self.betas[1])] * count,
            "epsilon": [float(self.eps)] * count,
            "lambda": [float(self.weight_decay)] * count,
            "do_bias_correction": int(self.bias_correction),
            "ratio_min": float(low),
            "ratio_max": float(high),
        }
        inputs = ["", "", "", LEARNING_RATE, STEP]
        outputs = [edit.generate_name("new_step")]
        made = []
        for group in groups:
            # the last of a group's five places is for weights in a second precision
            inputs += [*group, ""]
            new = [edit.generate_name("updated") for _ in range(3)]
            outputs += [new[0], "", new[1], new[2], ""]
            made.append((new[0], new[1], new[2]))
        edit.add_node(self.base, "LambOptimizer", inputs, outputs, MS, attributes)
        return made
