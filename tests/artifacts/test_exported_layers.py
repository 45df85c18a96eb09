"""Layers of torch's exporter: folded normalizations, parts in sequences, means of any size."""

from __future__ import annotations

import contextlib
import copy
import io
import pathlib

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onnxtrain import artifacts
from onnxtrain.api import CheckpointState, Module, Optimizer


def export(module: nn.Module, x: torch.Tensor, optimize: bool = True, **options) -> onnx.ModelProto:
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(module, (x,), dynamo=True, optimize=optimize, **options)
    assert program is not None
    return program.model_proto


def write(model: onnx.ModelProto, names: list[str], folder: pathlib.Path) -> onnx.ModelProto:
    artifacts.generate_artifacts(
        model,
        requires_grad=names,
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )
    return onnx.load(folder / "training_model.onnx")


def losses(folder: pathlib.Path, *batch: np.ndarray) -> list[float]:
    """Losses of three steps."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, device="cpu")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.1)
    found = []
    for _ in range(3):
        found.append(float(module(*batch)))
        optimizer.step()
        module.lazy_reset_grad()
    return found


def losses_in_torch(module: nn.Module, x: torch.Tensor, target: torch.Tensor) -> list[float]:
    """The same, of torch's."""
    found, descent = [], torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(3):
        descent.zero_grad()
        loss = nn.functional.mse_loss(module(x), target)
        loss.backward()
        descent.step()
        found.append(float(loss.detach()))
    return found


def convolutions(model: onnx.ModelProto) -> list[list[str]]:
    """What each of them reads besides its images."""
    return [list(node.input[1:]) for node in model.graph.node if node.op_type == "Conv"]


def names_of(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def block(bias: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, bias=bias), nn.BatchNorm2d(3), nn.ReLU())


IMAGES = torch.linspace(-1, 1, 96).reshape(2, 3, 4, 4)


@pytest.mark.parametrize("of", ["module", "file"])
def test_a_layer_keeps_its_name_when_a_normalization_was_folded_into_it(of, tmp_path):
    module = nn.Sequential(block(True), nn.Conv2d(3, 2, 1)).eval()
    model = export(module, IMAGES)
    names = names_of(module)
    if of == "file":
        held = {tensor.name for tensor in model.graph.initializer}
        names = [name for name in names if name in held]
    training = write(model, names, tmp_path)
    assert convolutions(training) == [["0.0.weight", "0.0.bias"], ["1.weight", "1.bias"]]
    trained = [
        name for name, p in CheckpointState.load_checkpoint(tmp_path / "checkpoint").parameters
    ]
    assert sorted(trained) == ["0.0.bias", "0.0.weight", "1.bias", "1.weight"]


@pytest.mark.parametrize("bias", [True, False])
def test_copied_layers_with_folded_normalizations_are_apart(bias, tmp_path):
    first = block(bias)
    module = nn.Sequential(first, copy.deepcopy(first), copy.deepcopy(first)).eval()
    training = write(export(module, IMAGES), names_of(module), tmp_path)
    biases = 0 if bias else 1  # of the normalization where the layer has none
    assert convolutions(training) == [[f"{i}.0.weight", f"{i}.{biases}.bias"] for i in range(3)]


def test_parameters_of_folded_normalizations_are_found_in_their_layer(tmp_path):
    module = nn.Sequential(block(False), nn.Conv2d(3, 2, 1)).eval()
    module[0][1].running_mean.fill_(0.5)
    names = names_of(module)
    assert names[:3] == ["0.0.weight", "0.1.weight", "0.1.bias"]
    training = write(export(module, IMAGES), names, tmp_path)
    parameters = CheckpointState.load_checkpoint(tmp_path / "checkpoint").parameters
    assert {name for one in convolutions(training) for name in one} == {n for n, _ in parameters}
    assert all(parameter.requires_grad for _, parameter in parameters)
    batch = IMAGES.numpy(), np.zeros((2, 2, 4, 4), np.float32)
    wanted = nn.functional.mse_loss(module(IMAGES), torch.zeros(2, 2, 4, 4))
    first, *_, last = losses(tmp_path, *batch)
    assert first == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert last < first


class Levels(nn.Module):
    """One convolution at two places, with a normalization of its own at each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.one, self.two = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.two(self.conv(self.one(self.conv(x)).relu()))
        return result


def test_a_layer_with_several_folded_normalizations_is_one(tmp_path):
    module = Levels().eval()
    training = write(export(module, IMAGES), ["conv.weight", "conv.bias"], tmp_path)
    assert convolutions(training) == [["conv.weight", "conv.bias"]] * 2


class Chunks(nn.Module):
    """Halves of features of which one gates the other, and uneven parts."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 12), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.up(x).chunk(2, -1)
        head, tail = self.down(gate.sigmoid() * value).split([2, 3], -1)
        return torch.cat([tail, head.tanh()], -1)


@pytest.mark.parametrize("named", [True, False])
def test_parts_in_sequences_take_no_operators_of_our_own(named, tmp_path):
    torch.manual_seed(0)
    module, x, target = Chunks().eval(), torch.randn(3, 2, 4), torch.randn(3, 2, 5)
    free = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    model = export(module, x, optimize=False, dynamic_shapes={"x": free})
    assert "SplitToSequence" in {node.op_type for node in model.graph.node}
    if not named:
        del model.graph.value_info[:]
        for dim in model.graph.input[0].type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    training = write(model, names_of(module), tmp_path)
    assert {node.domain for node in training.graph.node} <= {"", "com.microsoft"}
    assert {one.domain for one in training.opset_import} <= {"", "com.microsoft"}
    wanted = losses_in_torch(module, x, target)
    assert losses(tmp_path, x.numpy(), target.numpy()) == pytest.approx(wanted, rel=1e-5)


def pooled(pool: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), pool, nn.Conv2d(4, 2, 1)).eval()


@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.AvgPool2d((3, 2), (1, 2), (1, 0)),
        nn.Sequential(nn.AvgPool2d(2), nn.AvgPool2d(2)),
    ],
    ids=["halves", "what is there", "with padding", "twice"],
)
def test_means_of_any_number_of_images_take_no_shape(pool, tmp_path):
    module = pooled(pool)
    free = {0: torch.export.Dim.AUTO}
    model = export(module, IMAGES, dynamic_shapes={"input": free})
    assert "AveragePool" in {node.op_type for node in model.graph.node}
    training = write(model, names_of(module), tmp_path)
    assert not [node for node in training.graph.node if node.op_type == "AveragePoolGrad"]
    read = {name for node in training.graph.node for name in node.input}
    written = [node for node in training.graph.node if node.op_type == "Shape"]
    assert all(read.intersection(node.output) for node in written)
    images = torch.cat([IMAGES, IMAGES.flip(0)[:1]])
    target = torch.ones_like(module(images)).detach()
    wanted = losses_in_torch(module, images, target)
    assert losses(tmp_path, images.numpy(), target.numpy()) == pytest.approx(wanted, rel=1e-5)


def test_means_of_a_known_number_of_images_are_as_the_reference_has_them(tmp_path):
    module = pooled(nn.AvgPool2d(2))
    training = write(export(module, IMAGES), names_of(module), tmp_path)
    (grad,) = [node for node in training.graph.node if node.op_type == "AveragePoolGrad"]
    assert len(grad.input) == 1
