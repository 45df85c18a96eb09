"""Modules as torch's exporter writes them, and training that goes on as torch's does."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import torch

from onnxtrain import Trainer


def exported(module: torch.nn.Module, x: torch.Tensor, **options: Any) -> bytes:
    """A file of a module that evaluates, whose input is x, without what the exporter says."""
    file = io.BytesIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), (x,), file, input_names=["x"], dynamo=True, **options)
    return file.getvalue()


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


def trained_as_in_torch(module: torch.nn.Module, lr: float = 0.0625) -> Trainer:
    """A trainer that did the steps of torch with four rows of six numbers, without a warning."""
    torch.manual_seed(1)
    x, target = torch.randn(4, 6), torch.randn(4, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = Trainer(
            exported(module, x), loss="mse", optimizer="sgd", lr=lr, device="cpu", seed=0
        )
    follow(trainer, module, x, target, lr=lr)
    return trainer
