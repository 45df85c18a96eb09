"""A parameter that a module reads in two forms trains as one, though its file has two tensors."""

from __future__ import annotations

import contextlib
import copy
import io
import pathlib

import numpy as np
import onnxruntime
import pytest
import torch
from followed import exported, follow
from torch import nn

from onnxtrain import Trainer


class Tied(nn.Module):
    """An embedding that gives the scores, too, and a layer for vectors and for sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layer = nn.Linear(4, 4)
        self.scores = nn.Linear(4, 7, bias=False)
        self.scores.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.embedding(tokens)).tanh()
        return self.scores(hidden + self.layer(hidden.mean(1))[:, None])


def loss(outputs: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    (y,) = outputs.values()
    return nn.functional.cross_entropy(y.flatten(0, 1), batch["tokens"].flatten())


def train_both(trainer: Trainer, module: nn.Module, tokens: torch.Tensor) -> None:
    """Some steps of both, whose losses must be the same."""
    steps = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(4):
        steps.zero_grad()
        expected = loss({"y": module(tokens)}, {"tokens": tokens})
        expected.backward()
        steps.step()
        torch.testing.assert_close(trainer.step({"tokens": tokens}), expected.detach())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dynamo", [True, False], ids=["new exporter", "old exporter"])
def test_tied_parameters_stay_tied(dynamo: bool, tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    module, tokens = Tied(), torch.randint(7, (3, 5))
    path, trained = tmp_path / "tied.onnx", tmp_path / "trained.onnx"
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(module.eval(), (tokens,), path, dynamo=dynamo, input_names=["tokens"])
    trainer = Trainer(path, loss=loss, optimizer="sgd", lr=0.5, device="cpu")
    assert sorted(p.numel() for p in trainer.parameters.values()) == [4, 16, 28]
    peer = copy.deepcopy(module)
    train_both(trainer, peer, tokens)
    trainer.save(trained)
    (found,) = onnxruntime.InferenceSession(trained).run(None, {"tokens": tokens.numpy()})
    np.testing.assert_allclose(found, peer(tokens).detach(), rtol=1e-4, atol=1e-5)


class Decoder(nn.Module):
    """A layer and the same one transposed, with a bias of its own that begins with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3, bias=False)
        self.shift = nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(torch.relu(self.layer(x)), self.layer.weight.t(), self.shift)


def test_a_layer_with_the_weight_of_another_has_its_bias_of_zeros() -> None:
    torch.manual_seed(0)
    module, x = Decoder(), torch.randn(4, 6)
    trainer = Trainer(
        exported(module, x), loss="mse", optimizer="sgd", lr=0.25, device="cpu", seed=0
    )
    assert set(trainer.parameters) == {"layer.weight", "shift"}
    follow(trainer, module, x, torch.randn(4, 6), lr=0.25)


class Normalized(nn.Module):
    """Words that are normalized as they are looked up, by a layer like another that comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.later = nn.LayerNorm(4)
        self.embedding = nn.Embedding(7, 4)
        self.first = nn.LayerNorm(4)
        self.layer = nn.Linear(4, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x + self.layer(self.first(x)).tanh()
        return nn.functional.linear(self.later(x), self.embedding.weight)


def test_words_are_no_copy_of_the_layer_that_normalizes_them() -> None:
    """Layers that were not trained are equal, and the exporter stores the numbers of one."""
    torch.manual_seed(0)
    module, tokens = Normalized(), torch.randint(7, (3, 5))
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(module.eval(), (tokens,), dynamo=True, input_names=["tokens"])
    assert program is not None
    model = program.model_proto.SerializeToString()
    trainer = Trainer(model, loss=loss, optimizer="sgd", lr=0.5, device="cpu")
    assert sorted(p.numel() for p in trainer.parameters.values()) == [4] * 5 + [16, 28]
    train_both(trainer, module, tokens)
