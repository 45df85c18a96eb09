"""Memory that a training step will need, told from shapes; nothing is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import torch

from onnxtrain.cli.sizes import Sizes
from onnxtrain.graph.loading.load import ModelLike, load_model
from onnxtrain.runtime.lifetimes import live_bytes
from onnxtrain.training.trainer import Trainer
from onnxtrain.transforms.training_graph import BUFFER_SUFFIX

_MOMENTS = 2
"""Tensors that AdamW keeps for each parameter."""


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes of one training step with AdamW.

    Attributes:
        parameters: Weights and constants, float32 copies of 16 bit weights included.
        gradients: One buffer for each trained weight.
        moments: State of the optimizer.
        activations: The most that lives at once of what the step computes; the working memory of
            single kernels is not known and not included.
        unknown: How many tensors have a size that the shapes do not tell; they count as nothing.
    """

    parameters: int
    gradients: int
    moments: int
    activations: int
    unknown: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.moments + self.activations


def footprint(model: ModelLike, batch_size: int) -> Footprint:
    """The memory that a training step on so many samples needs, all float outputs in its loss."""
    sized = load_model(model, own=True)
    _set_batch(sized, batch_size)
    return of_trainer(Trainer(sized, loss=_squares, device="cpu"))


def of_trainer(trainer: Trainer) -> Footprint:
    """The memory of a trainer's step, as far as the shapes of its model tell."""
    runner = trainer.module.runner(training=True)
    sizes = Sizes(runner.model, runner.plan)
    held = live_bytes(runner.plan.block, sizes.of)
    state = runner.plan.state
    buffers = [local for name, local in state.items() if name.endswith(BUFFER_SUFFIX)]
    gradients = sum(sizes.of(local) for local in buffers)
    return Footprint(
        parameters=sizes.bound - gradients,
        gradients=gradients,
        moments=_MOMENTS * gradients,
        activations=max((count for _, count in held), default=0),
        unknown=len(sizes.unknown),
    )


def _squares(outputs: Mapping[str, torch.Tensor], batch: Mapping[str, Any]) -> torch.Tensor:
    """A loss that needs every floating point output."""
    given = [y.square().mean() for y in outputs.values() if y.is_floating_point()]
    return torch.stack(given).sum()


def _set_batch(model: ir.Model, size: int) -> None:
    """Give the first dimension of the inputs a size where the model leaves it open, in place."""
    names: set[str] = set()
    for value in model.graph.inputs:
        if value.shape and not isinstance(value.shape[0], int):
            names |= {value.shape[0].value} if value.shape[0].value else set()
            value.shape = ir.Shape([size, *value.shape[1:]])
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape:
            dims = [d if isinstance(d, int) or d.value not in names else size for d in value.shape]
            value.shape = ir.Shape(dims)
