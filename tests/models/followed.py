"""Training that goes on as torch's does."""

from __future__ import annotations

import torch

from onnxtrain import Trainer


def follow(
    trainer: Trainer, module: torch.nn.Module, x: torch.Tensor, target: torch.Tensor, *, lr: float
) -> None:
    """Some steps of both by gradient descent, whose losses must be the same."""
    assert len(trainer.parameters) == len(list(module.parameters()))
    steps = torch.optim.SGD(module.parameters(), lr=lr)
    for _ in range(4):
        steps.zero_grad()
        loss = torch.nn.functional.mse_loss(module(x), target)
        loss.backward()
        steps.step()
        found = trainer.step({"x": x, "target": target})
        torch.testing.assert_close(found, loss.detach())
