"""Gradients in bfloat16 with float32 weights, beside torch's: how far each is from float64."""

from __future__ import annotations

import copy

import pytest
import torch
from architectures import Example, Inputs, example
from gradients_of import Gradients, measures

from onnxtrain import Trainer

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BATCHES = 4
FURTHER = 1.6
"""How much further ours may be, on average over the batches: autocast adds residual connections in
float32, and is 1.2 to 1.4 times as near."""


def torchs(
    of: Example, batch: Inputs, labels: torch.Tensor, dtype: torch.dtype, autocast: bool = False
) -> Gradients:
    """Gradients of a module in a type, on the device of the batch."""
    device = labels.device.type
    module = copy.deepcopy(of.module).to(device, dtype)
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        scores = of.scores(given, module)
    of.loss(scores.to(torch.promote_types(scores.dtype, torch.float32)), labels).backward()
    return {name: weight.grad for name, weight in module.named_parameters()}


def error(found: Gradients, exact: Gradients) -> float:
    """The mean error of gradients, of which there may be more."""
    return measures({key: found[key] for key in exact}, exact)[1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "llama"])
def test_gradients_are_about_as_exact_as_with_autocast(name: str, device: str) -> None:
    of = example(name)
    loss = "token_cross_entropy" if of.family.per_token else "cross_entropy"
    trainer = Trainer(of.model, loss=loss, device=device, precision="bf16")
    ours, autocast = 0.0, 0.0
    for seed in range(BATCHES):
        given = of.batch(8, 16, seed)
        labels = of.labels(of.scores(given), seed).to(device)
        batch = {key: value.to(device) for key, value in given.items()}
        exact = torchs(of, batch, labels, torch.float64)
        found = trainer.gradients({**batch, "labels": labels})
        torchs_own = torchs(of, batch, labels, torch.float32, autocast=True)
        # a table that is shared has the name of either of its users
        exact = {key: exact[key] for key in found.keys() & exact.keys()}
        assert len(exact) > 20
        ours += error(found, exact)
        autocast += error(torchs_own, exact)
    assert ours < FURTHER * autocast, f"{ours / BATCHES} beside {autocast / BATCHES} with autocast"
