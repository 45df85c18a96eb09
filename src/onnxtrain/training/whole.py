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

    Where runner and optimizer can, gradients go from one to the other without their buffers, which
    keep what they had.

    Args:
        runner: Runs forward and backward.
        optimizer: Updates the parameters.
        direct: Whether gradients may go past their buffers.

    Attributes:
        recorder: Records both together; None if the options of the session forbid it.
        direct: Whether gradients go past their buffers.
    """

    def __init__(self, runner: Runner, optimizer: Optimizer, direct: bool = True) -> None:
        self._runner = runner
        self._optimizer = optimizer
        self.direct = direct and bool(runner.handed) and optimizer.direct is not None
        self.recorder: Recorder | None = None
        update = optimizer.direct if self.direct else optimizer.program
        assert update is not None
        if runner.recorder is not None:
            self.recorder = Recorder(
                self._both,
                [*runner.outputs[:1], len(runner.plan.outputs)],
                [runner.program, update],
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
        recorder = self.recorder
        if self._apart():
            loss: torch.Tensor = self._runner.run(inputs, reset=True)[0]
            self._optimizer.step()
            return loss
        with self._runner.settings():
            arguments = self._runner.arguments(inputs, reset=True, hand_over=self.direct)
            self._optimizer.begin()
            if recorder is not None:
                loss, done = recorder.run(arguments)
            else:
                results = self._both(*arguments)
                loss, done = results[self._runner.outputs[0]], results[-1]
        self._optimizer.end(done)
        return loss

    def _apart(self) -> bool:
        """Whether backward and update are better run one after the other."""
        if self.recorder is not None and not self.recorder.why_not:
            return False
        alone = self._runner.recorder
        return not self.direct or (alone is not None and not alone.why_not)

    def _both(self, *arguments: Any) -> tuple[Any, ...]:
        """All results of the step, then the flag of the update."""
        results = self._runner.program(*arguments)
        if not self.direct:
            return (*results, *self._optimizer.update())
        handed = {name: results[index] for name, index in self._runner.handed.items()}
        return (*results, *self._optimizer.update_from(handed))
