"""Gradients in bfloat16 with float32 weights, beside torch's: how far each is from float64.

Torch's autocast keeps sums of residual connections in float32, a module in bfloat16 keeps nothing.
"""

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
"""How much further than autocast's gradients ours may be, on average over the batches."""


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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["vit", "bert", "gpt2", "llama"])
def test_gradients_are_about_as_exact_as_with_autocast(name: str, device: str) -> None:
    of = example(name)
    loss = "token_cross_entropy" if of.family.per_token else "cross_entropy"
    trainer = Trainer(of.model, loss=loss, device=device, precision="bf16")
    found: dict[str, list[float]] = {"ours": [], "autocast": [], "bfloat16": []}
    for seed in range(BATCHES):
        given = of.batch(8, 16, seed)
        labels = of.labels(of.scores(given), seed).to(device)
        batch = {key: value.to(device) for key, value in given.items()}
        exact = torchs(of, batch, labels, torch.float64)
        ways = {
            "ours": trainer.gradients({**batch, "labels": labels}),
            "autocast": torchs(of, batch, labels, torch.float32, autocast=True),
            "bfloat16": torchs(of, batch, labels, torch.bfloat16),
        }
        # a table that is shared has the name of either of its users
        exact = {key: exact[key] for key in ways["ours"].keys() & exact.keys()}
        assert len(exact) > 20
        for way, gradients in ways.items():
            found[way].append(measures({key: gradients[key] for key in exact}, exact)[1])
    ours, autocast, narrow = (sum(errors) / BATCHES for errors in found.values())
    assert ours < narrow, f"{ours} is more than that of a module in bfloat16, {narrow}"
    assert ours < FURTHER * autocast, f"{ours} is far more than with autocast, {autocast}"
