"""WholeStep: forward, backward and update as one piece of work, one launch where it is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onnxtrain.runtime.capture import Recorder
from onnxtrain.training.optimizer import Optimizer
from onnxtrain.training.runner import Runner


class WholeStep:
    """A training step over one batch whose gradients replace those that are there.

    Args:
        runner: Runs forward and backward.
        optimizer: Updates the parameters.

    Attributes:
        recorder: Records both together; None if the options of the session forbid it.
    """

    def __init__(self, runner: Runner, optimizer: Optimizer) -> None:
        self._runner = runner
        self._optimizer = optimizer
        self.recorder: Recorder | None = None
        if runner.recorder is not None:
            self.recorder = Recorder(
                self._both,
                [*runner.outputs[:1], len(runner.plan.outputs)],
                [runner.program, optimizer.program],
                runner.plan.inputs,
                runner.recorder.graphs,
                optimizer.why_not,
            )

    def run(self, inputs: Sequence[Any]) -> torch.Tensor:
        """The loss for user inputs; parameters and moments are updated.

        Raises:
            FeedError: if there are too few or too many inputs, or one does not fit.
            NodeError: if a kernel fails.
        """
        if self.recorder is None or self.recorder.why_not:
            loss: torch.Tensor = self._runner.run(inputs, reset=True)[0]
            self._optimizer.step()
            return loss
        self._optimizer.begin()
        with self._runner.settings():
            arguments = self._runner.arguments(inputs, reset=True)
            loss, done = self.recorder.run(arguments)
        self._optimizer.end(done)
        return loss

    def _both(self, *arguments: Any) -> tuple[Any, ...]:
        """All results of the step, then the flag of the update."""
        results = self._runner.program(*arguments)
        return (*results, *self._optimizer.update())
