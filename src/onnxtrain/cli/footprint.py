"""Memory that a training step will need, told from shapes; nothing is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import torch

from onnxtrain.cli.sizes import Sizes
from onnxtrain.errors import OptionError
from onnxtrain.graph.loading.load import ModelLike, load_model
from onnxtrain.kernels.library import default_registry
from onnxtrain.runtime.lifetimes import live_bytes
from onnxtrain.runtime.lower import LowerOptions
from onnxtrain.runtime.plan import Plan
from onnxtrain.runtime.ready import planned
from onnxtrain.training.trainer import Trainer
from onnxtrain.transforms.recipe import Waiting, wait
from onnxtrain.transforms.training_graph import BUFFER_SUFFIX
from onnxtrain.types import CPU

_MOMENTS = 2
"""Tensors that AdamW keeps for each parameter."""
LESS = {
    "--recompute cheap": Waiting(recompute="cheap"),
    "--recompute layers": Waiting(recompute="layers"),
    "--compress exact": Waiting(compress="exact"),
    "--compress pack8": Waiting(compress="pack8"),
}
"""Options of ``fit`` that keep less for the backward pass."""


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
        less: What lives at once with options of ``fit`` that keep less.
    """

    parameters: int
    gradients: int
    moments: int
    activations: int
    unknown: int
    less: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.moments + self.activations


def footprint(model: ModelLike, batch_size: int) -> Footprint:
    """The memory that a training step on so many samples needs, all float outputs in its loss."""
    sized = load_model(model, own=True)
    _set_batch(sized, batch_size)
    trainer = Trainer(sized, loss=_squares, device="cpu")
    less = {option: _activations(trainer, waiting) for option, waiting in LESS.items()}
    return dataclasses.replace(of_trainer(trainer), less=less)


def of_trainer(trainer: Trainer) -> Footprint:
    """The memory of a trainer's step, as far as the shapes of its model tell."""
    runner = trainer.module.runner(training=True)
    sizes = Sizes(runner.model, runner.plan)
    state = runner.plan.state
    buffers = [local for name, local in state.items() if name.endswith(BUFFER_SUFFIX)]
    gradients = sum(sizes.of(local) for local in buffers)
    return Footprint(
        parameters=sizes.bound - gradients,
        gradients=gradients,
        moments=_MOMENTS * gradients,
        activations=_peak(runner.plan, sizes),
        unknown=len(sizes.unknown),
    )


def _activations(trainer: Trainer, waiting: Waiting) -> int:
    """What a trainer's step would have at once if values waited otherwise."""
    runner = trainer.module.runner(training=True)
    model = runner.model.clone()
    wait(model, waiting)
    state = runner.plan.state.keys()
    plan = planned(model, default_registry(), LowerOptions(CPU), state=state)
    return _peak(plan, Sizes(model, plan))


def _peak(plan: Plan, sizes: Sizes) -> int:
    return max((count for _, count in live_bytes(plan.block, sizes.of)), default=0)


def _squares(outputs: Mapping[str, torch.Tensor], batch: Mapping[str, Any]) -> torch.Tensor:
    """A loss that needs every floating point output."""
    given = [y.square().mean() for y in outputs.values() if y.is_floating_point()]
    return torch.stack(given).sum()


def _set_batch(model: ir.Model, size: int) -> None:
    """Give the first dimension of the inputs a size where the model leaves it open, in place.

    Raises:
        OptionError: if it is larger than a dimension of a model can be.
    """
    if size >= 2**63:
        raise OptionError(f"a batch cannot have {size} samples, dimensions are below 2**63")
    names: set[str] = set()
    for value in model.graph.inputs:
        if value.shape and not isinstance(value.shape[0], int):
            names |= {value.shape[0].value} if value.shape[0].value else set()
            value.shape = ir.Shape([size, *value.shape[1:]])
    made = [value for node in model.graph.all_nodes() for value in node.outputs]
    for value in (*model.graph.inputs, *made):
        if value.shape:
            dims = [d if isinstance(d, int) or d.value not in names else size for d in value.shape]
            value.shape = ir.Shape(dims)
