"""Rows of a table that a torch Embedding trains in its own way are trained so."""

from __future__ import annotations

import pathlib

import numpy as np
import onnxruntime
import pytest
import torch
from followed import exported, follow
from torch import nn

from onnxtrain import Trainer

WORDS = torch.tensor([[2, 2, 1, 0], [5, 5, 5, 2], [3, 2, 0, 1]])
OPTIONS = {
    "padding": {"padding_idx": 2},
    "last": {"padding_idx": -1},
    "frequency": {"scale_grad_by_freq": True},
    "both": {"padding_idx": 0, "scale_grad_by_freq": True},
    "neither": {},
}


class Words(nn.Module):
    """The mean of words, some of which are padding, and what follows them."""

    def __init__(self, tied: bool = False, **options: object) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4, **options)  # type: ignore[arg-type]
        self.layer = nn.Linear(4, 6)
        if tied:
            self.layer.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(torch.tanh(self.table(x)).mean(1))
        return result


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
def test_padding_and_frequent_words_are_trained_as_in_torch(kind: str, tied: bool) -> None:
    torch.manual_seed(0)
    module = Words(tied, **OPTIONS[kind])
    trainer = Trainer(exported(module, WORDS), loss="mse", optimizer="sgd", lr=0.5, device="cpu")
    follow(trainer, module, WORDS, torch.randn(3, 6), lr=0.5)
    torch.testing.assert_close(trainer.parameters["layer.bias"], module.layer.bias.detach())
    if not tied:
        torch.testing.assert_close(trainer.parameters["table.weight"], module.table.weight.detach())


@pytest.mark.parametrize("options", [{"optimize": False}, {"dynamic_shapes": ({0: "batch"},)}])
def test_padding_stays_zero_in_the_file_that_is_saved(
    options: dict[str, object], tmp_path: pathlib.Path
) -> None:
    module = Words(padding_idx=2)
    trainer = Trainer(exported(module, WORDS, **options), loss="mse", lr=0.1, device="cpu")
    for _ in range(3):
        trainer.step({"x": WORDS, "target": torch.ones(3, 6)})
    assert not trainer.parameters["table.weight"][2].any()
    assert trainer.parameters["table.weight"][[0, 1, 3, 5]].all()
    trainer.save(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    (found,) = session.run(None, {"x": WORDS.numpy()})
    ours = next(iter(trainer.predict({"x": WORDS}).values()))
    np.testing.assert_allclose(found, ours, rtol=1e-5, atol=1e-6)
