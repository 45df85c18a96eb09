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


class Equal(nn.Module):
    """Two normalizations of the same data, tables of zeros, and a layer with a bias of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(4), nn.LayerNorm(4)
        self.scale, self.shift = (nn.Parameter(torch.zeros(3, 4)) for _ in range(2))
        self.layer = nn.Linear(12, 4)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(x)) * (1 + self.scale) + torch.sin(self.second(x)) + self.shift
        result: torch.Tensor = self.layer(y.flatten(1))
        return result


def equal() -> tuple[Equal, onnx.ModelProto, list[str]]:
    """The module, its file, and the names of what the file has of its parameters."""
    torch.manual_seed(0)
    module = Equal().eval()
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(module, (torch.rand(2, 3, 4),), dynamo=True)
    assert program is not None
    model = program.model_proto
    return module, model, [t.name for t in model.graph.initializer if t.data_type == 1]


def test_names_of_the_file_stand_for_all_that_was_merged_into_them(tmp_path):
    module, model, names = equal()
    assert len(names) < len(list(module.parameters()))
    with pytest.warns(UserWarning, match="they are apart again, and trained, too") as found:
        artifacts.generate_artifacts(
            model,
            requires_grad=names,
            loss=artifacts.LossType.MSELoss,
            optimizer=onnxblock.optim.SGD(),
            artifact_directory=tmp_path,
        )
    text = "".join(str(one.message) for one in found)
    assert "'second.weight' like 'first.weight'" in text and "'layer.bias' like" in text
    assert all(one.filename == __file__ for one in found if "exporter" in str(one.message))
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert len([n for n, p in state.parameters if p.requires_grad]) == len(module.state_dict())
    trained = Module(tmp_path / "training_model.onnx", state, device="cpu")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", trained)
    optimizer.set_learning_rate(0.5)
    descent = torch.optim.SGD(module.parameters(), 0.5)
    x, target = torch.rand(2, 3, 4), torch.rand(2, 4)
    for _ in range(4):
        loss = float(trained(x.numpy(), target.numpy()))
        optimizer.step()
        trained.lazy_reset_grad()
        wanted = nn.functional.mse_loss(module(x), target)
        descent.zero_grad()
        wanted.backward()
        descent.step()
        assert loss == pytest.approx(float(wanted.detach()), rel=1e-4)


def test_what_was_merged_into_a_frozen_parameter_is_frozen(tmp_path):
    _, model, names = equal()
    frozen = [name for name in names if name.startswith(("first", "second"))]
    rest = [name for name in names if name not in frozen]
    with pytest.warns(UserWarning) as found:
        artifacts.generate_artifacts(
            model,
            requires_grad=rest,
            frozen_params=frozen,
            artifact_directory=tmp_path,
            loss=artifacts.LossType.MSELoss,
        )
    assert "second.weight" not in "".join(str(one.message) for one in found)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert {n for n, p in state.parameters if not p.requires_grad} == {
        *("first.weight", "first.bias", "second.weight", "second.bias"),
    }


def test_names_of_the_module_say_what_is_trained(tmp_path, recwarn):
    """Who names a parameter that the file does not have knows the module."""
    _, model, _ = equal()
    artifacts.generate_artifacts(
        model,
        requires_grad=["second.weight", "layer.weight"],
        loss=artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert [n for n, p in state.parameters if p.requires_grad] == ["layer.weight", "second.weight"]
    assert not [one for one in recwarn if "exporter" in str(one.message)]


def test_artifacts_warn_as_a_trainer_does(tmp_path):
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Parameter(torch.rand(3, 4)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x + (self.first * self.second))

    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(Sum().eval(), (torch.rand(2, 3, 4),), dynamo=True)
    assert program is not None
    with pytest.warns(UserWarning, match="'mul' from 'first', 'second'"):
        artifacts.generate_artifacts(
            program.model_proto,
            requires_grad=["mul"],
            loss=artifacts.LossType.MSELoss,
            artifact_directory=tmp_path,
        )
