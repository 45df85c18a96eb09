"""Forward and backward passes over batches: what a step does before the update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from onnxtrain.errors import FeedError
from onnxtrain.kernels.precision import widen
from onnxtrain.training.batch import Batch, on_device, pick, refuse_others, samples
from onnxtrain.training.losses import TorchLoss, differentiated
from onnxtrain.training.module import Module


class Passes:
    """Computes losses and leaves the gradients in the buffers of a module.

    Args:
        module: The module.
        function: The loss, if it is a torch function.
        outputs: Outputs of the model that the function takes.
        moving: Running statistics that a pass changes.
    """

    def __init__(
        self,
        module: Module,
        function: TorchLoss | None,
        outputs: Sequence[str],
        moving: Sequence[str],
    ) -> None:
        self._module = module
        self._function = function
        self._outputs = outputs
        self._moving = moving

    def inputs(self, batch: Batch) -> list[Any]:
        """What a step takes, from a batch that has nothing else."""
        names = [a.name for a in self._module.runner(training=True).user_inputs]
        found = pick(batch, names)
        refuse_others(batch, names)
        return found

    def one(self, batch: Batch, reset: bool = True) -> torch.Tensor:
        """The loss on one batch; its gradients replace those that are there, or are added."""
        runner = self._module.runner(training=True)
        function = self._function
        if function is None:
            loss: torch.Tensor = runner.run(self.inputs(batch), reset=reset)[0]
            return loss
        inputs = pick(batch, [a.name for a in runner.user_inputs])
        given = on_device(batch, self._module.device)
        scaling = self._module.scaling
        scale = None if scaling is None else scaling.scale
        return runner.run_split(
            inputs,
            reset=reset,
            middle=lambda outputs: differentiated(function, self._outputs, outputs, given, scale),
        )

    def several(self, batches: Sequence[Batch]) -> torch.Tensor:
        """The mean loss over batches; the gradients are those of the mean.

        The buffers hold Σ n_j·g_j/n_i after batch i of n_i samples, and the mean at the end. A
        batch without samples is left out, unless there is no other.
        """
        if not batches:
            raise FeedError("a step needs at least one batch, the list of batches is empty")
        batches = [batch for batch in batches if samples(batch)] or batches[:1]
        sizes = [samples(batch) or 1 for batch in batches]
        buffers = self.gradients()
        total: Any = 0.0
        for index, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
            if index and size != sizes[index - 1]:
                torch._foreach_mul_(buffers, sizes[index - 1] / size)
            loss = self.one(batch, reset=index == 0)
            total = total + widen(loss) * size
        torch._foreach_mul_(buffers, sizes[-1] / sum(sizes))
        mean: torch.Tensor = (total / sum(sizes)).to(loss.dtype)
        return mean

    def gradients(self) -> list[torch.Tensor]:
        """The buffers of the gradients."""
        return [
            p.grad_tensor
            for p in self._module.state.parameters.in_order(trainable=True)
            if p.grad_tensor is not None
        ]

    @contextlib.contextmanager
    def unmoved(self) -> Iterator[None]:
        """With: running statistics and random numbers are afterwards what they were before."""
        program = self._module.runner(training=True).program
        generators = [(g, g.get_state()) for g in (program.rng, program.rng_host)]
        moving = [self._module.state.parameters[name].tensor for name in self._moving]
        before = [tensor.clone() for tensor in moving]
        try:
            yield
        finally:
            for tensor, old in zip(moving, before, strict=True):
                tensor.copy_(old)
            for generator, state in generators:
                generator.set_state(state)
