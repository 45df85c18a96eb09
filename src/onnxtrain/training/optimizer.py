"""Optimizer: runs the optimizer model over a module's parameters and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onnxtrain.errors import CheckpointError, ModelError
from onnxtrain.graph.load import ModelLike, load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.library import default_registry
from onnxtrain.runtime.lower import LowerOptions
from onnxtrain.runtime.program import Program
from onnxtrain.runtime.ready import planned
from onnxtrain.training.checkpoint import OptimizerState, Parameter
from onnxtrain.training.module import Module
from onnxtrain.types import CPU, CUDA

MOMENTS = {"first_order_moments": "momentum0", "second_order_moments": "momentum1"}
"""Inputs of optimizer models that carry state, and its names in checkpoints."""
_NEEDED = ("learning_rate", "params", "gradients")
_INPUTS = ("learning_rate", "step", "params", "gradients", *MOMENTS)
_UPDATED = "updated_"
"""Outputs of optimizer models that do not update in place: new values of the input so called."""


class Optimizer:
    """Updates a module's parameters.

    Args:
        optimizer_uri: The optimizer model: a path, or the model itself.
        module: Whose parameters it updates.
    """

    def __init__(self, optimizer_uri: ModelLike, module: Module) -> None:
        self._module = module
        model = prepare(load_model(optimizer_uri, own=True))
        names = [str(v.name) for v in model.graph.inputs]
        _check_inputs(names)
        self._moments = [name for name in MOMENTS if name in names]
        provider = CUDA if module.device.type == "cuda" else CPU
        plan = planned(model, default_registry(), LowerOptions(provider))
        self._program = Program(plan, module.device)
        self._inputs = [a.name for a in plan.inputs]
        self._outputs = [a.name for a in plan.outputs]
        self._lists: dict[str, list[torch.Tensor]] | None = None
        state = module.state
        state.optimizer = state.optimizer or OptimizerState()
        self.state = state.optimizer
        if not state.parameters.nominal:
            self._bind()

    def _bind(self) -> dict[str, list[torch.Tensor]]:
        """The lists that the optimizer model works on; moments are made where there are none."""
        self._module.state.parameters.require_values()
        trained = self._module.parameters_in_order(trainable_only=True)
        known, keys = self.state.moments, [MOMENTS[name] for name in self._moments]
        if known:
            _check_moments(known, trained, keys)
        for parameter in trained:
            own = known.setdefault(parameter.name, {})
            for key in keys:
                old = own.get(key)
                if old is None:
                    own[key] = torch.zeros_like(parameter.tensor)
                else:
                    own[key] = old.to(self._module.device)
        self._lists = {
            "params": [p.tensor for p in trained],
            "gradients": [p.grad_tensor for p in trained if p.grad_tensor is not None],
            **{name: [known[p.name][MOMENTS[name]] for p in trained] for name in self._moments},
        }
        return self._lists

    def step(self) -> None:
        """Update every trained parameter from its gradient."""
        lists = self._lists if self._lists is not None else self._bind()
        scalars: dict[str, Any] = {
            "learning_rate": torch.tensor([self.state.learning_rate], dtype=torch.float32),
            "step": torch.tensor([self.state.step + 1]),
        }
        feeds = {**scalars, **lists}
        done, *rest = self._program(*(feeds[name] for name in self._inputs))
        for name, tensors in zip(self._outputs[1:], rest, strict=True):
            if name.startswith(_UPDATED):
                torch._foreach_copy_(lists[name.removeprefix(_UPDATED)], tensors)
        if bool(done.all()):
            self.state.step += 1

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate from the next step on."""
        self.state.learning_rate = float(learning_rate)

    def get_learning_rate(self) -> float:
        """The learning rate in use."""
        return self.state.learning_rate

    @property
    def steps_taken(self) -> int:
        """How many updates were made."""
        return self.state.step


def _check_inputs(names: Sequence[str]) -> None:
    wrong = [f"unknown input '{name}'" for name in names if name not in _INPUTS]
    wrong += [f"no input '{name}'" for name in _NEEDED if name not in names]
    if wrong:
        raise ModelError(
            f"not an optimizer model: {', '.join(wrong[:8])}\n"
            f"  inputs must be among {', '.join(_INPUTS)}"
        )


def _check_moments(
    known: dict[str, dict[str, torch.Tensor]], trained: Sequence[Parameter], keys: Sequence[str]
) -> None:
    """A checkpoint must have all of the state that the optimizer needs, in the right shapes."""
    if missing := [p.name for p in trained if p.name not in known]:
        raise CheckpointError(
            f"the checkpoint has no optimizer state for {', '.join(map(repr, missing[:8]))}"
        )
    for parameter in trained:
        own = known[parameter.name]
        if lacking := [key for key in keys if key not in own]:
            raise CheckpointError(
                f"the checkpoint was made with another optimizer: it has no {lacking[0]} "
                f"for '{parameter.name}'\n"
                "  go on with that optimizer, or save the checkpoint without optimizer state"
            )
        for key in keys:
            if own[key].shape != parameter.tensor.shape:
                raise CheckpointError(
                    f"optimizer state of '{parameter.name}' has shape {list(own[key].shape)}, "
                    f"the parameter {list(parameter.tensor.shape)}"
                )
