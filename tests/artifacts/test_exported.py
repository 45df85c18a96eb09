"""Models straight from torch's exporter: its parameters by the names that they have in torch."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onnxtrain import Trainer, artifacts, onnxblock
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.errors import ParameterError
from onnxtrain.training.selection import Selection


class Language(nn.Module):
    """An embedding that gives the scores too, and two layers that begin with the same ones."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.first, self.second = nn.LayerNorm(4), nn.LayerNorm(4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(
            self.second(self.middle(self.first(self.tokens(input_ids))))
        )
        return scores


@pytest.fixture(params=[True, False], ids=["optimized", "plain"])
def exported(request) -> tuple[Language, onnx.ModelProto]:
    torch.manual_seed(0)
    module = Language().eval()
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(
            module, (torch.zeros(2, 5, dtype=torch.long),), dynamo=True, optimize=request.param
        )
    assert program is not None
    return module, program.model_proto


def test_all_parameters_of_a_new_module_are_trained_as_torch_trains_them(exported, tmp_path):
    module, model = exported
    names = [name for name, _ in module.named_parameters()]
    artifacts.generate_artifacts(
        model,
        requires_grad=names,
        loss=onnxblock.loss.NextTokenLoss(),
        optimizer=onnxblock.optim.SGD(),
        artifact_directory=tmp_path,
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert len([name for name, p in state.parameters if p.requires_grad]) == len(names)
    trained = Module(tmp_path / "training_model.onnx", state, device="cpu")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", trained)
    optimizer.set_learning_rate(0.5)
    descent = torch.optim.SGD(module.parameters(), 0.5)
    for step in range(4):
        ids = np.random.default_rng(step).integers(0, 7, (2, 5))
        loss = float(trained(ids))
        optimizer.step()
        trained.lazy_reset_grad()
        scores = module(torch.tensor(ids))[:, :-1].reshape(-1, 7)
        wanted = nn.functional.cross_entropy(scores, torch.tensor(ids)[:, 1:].reshape(-1))
        descent.zero_grad()
        wanted.backward()
        descent.step()
        assert loss == pytest.approx(float(wanted.detach()), rel=1e-4)


def test_a_weight_that_modules_share_is_found_by_its_name_in_each_of_them(exported):
    _, model = exported
    options = {"loss": "next_token", "device": "cpu"}
    for name in ("tokens.weight", "head.weight", "tokens.*"):
        trainer = Trainer(model, trainable=[name], **options)
        assert [list(p.shape) for p in trainer.parameters.values()] == [[7, 4]]
    rest = Trainer(model, trainable=Selection(exclude=["tokens.weight"]), **options)
    assert [7, 4] not in [list(p.shape) for p in rest.parameters.values()]
    with pytest.raises(ParameterError, match=r"matches 'middle\.embedding'"):
        Trainer(model, trainable=["middle.embedding"], **options)
