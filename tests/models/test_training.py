"""The three models train like they do in torch: first gradients, and the losses of 20 steps."""

from __future__ import annotations

import copy

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

import zoo
from onnxtrain import Trainer

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BOUNDS = {torch.float32: 1e-4, torch.float64: 1e-9}


def trainer_of(example: zoo.Example, device: str, **options) -> Trainer:
    return Trainer(
        example.model, **{"loss": "cross_entropy", "device": device, "lr": 1e-2, **options}
    )


def batch_of(example: zoo.Example, device: str = "cpu") -> dict[str, torch.Tensor]:
    return {"x": example.inputs.to(device), "labels": example.labels.to(device)}


def torch_gradients(example: zoo.Example) -> dict[str, torch.Tensor]:
    module = copy.deepcopy(example.module)
    F.cross_entropy(module(example.inputs), example.labels).backward()
    return {name: p.grad for name, p in module.named_parameters()}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", zoo.NAMES)
def test_first_gradients_agree_with_autograd(name, device, dtype):
    example = zoo.example(name, dtype)
    expected = torch_gradients(example)
    found = trainer_of(example, device).gradients(batch_of(example))
    assert found.keys() == expected.keys()
    for parameter, grad in expected.items():
        error = (found[parameter].cpu() - grad).norm() / (grad.norm() + 1e-12)
        tiny = grad.norm() < 1e-6  # the gradient of a key bias is zero but for rounding
        assert tiny or error < BOUNDS[dtype], f"{parameter}: {error:.2e}"


def torch_losses(example: zoo.Example, steps: int, lr: float) -> list[float]:
    module, losses = copy.deepcopy(example.module), []
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(example.inputs), example.labels)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", zoo.NAMES)
def test_losses_of_twenty_adamw_steps_agree_with_torch(name, device):
    example = zoo.example(name, torch.float64)
    trainer = trainer_of(example, device, lr=1e-3)
    losses = [float(trainer.step(batch_of(example))) for _ in range(20)]
    np.testing.assert_allclose(losses, torch_losses(example, 20, 1e-3), rtol=1e-5)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", zoo.NAMES)
def test_a_torch_function_as_loss_gives_the_same_training(name, device):
    example = zoo.example(name)

    def loss(outputs, batch):
        return F.cross_entropy(outputs["scores"], batch["labels"])

    # AdamW would divide gradients that are nothing but rounding by themselves
    by_name = trainer_of(example, device, optimizer="sgd")
    by_function = trainer_of(example, device, optimizer="sgd", loss=loss)
    for _ in range(3):
        first = by_name.step(batch_of(example))
        second = by_function.step(batch_of(example))
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
    for parameter, tensor in by_name.parameters.items():
        torch.testing.assert_close(tensor, by_function.parameters[parameter], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_saved_model_runs_in_onnxruntime_with_the_trained_weights(name, tmp_path):
    example = zoo.example(name)
    trainer = trainer_of(example, "cpu")
    for _ in range(3):
        trainer.step(batch_of(example))
    trainer.save(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    (scores,) = session.run(None, {"x": example.inputs.numpy()})
    ours = trainer.predict({"x": example.inputs})["scores"].numpy()
    np.testing.assert_allclose(scores, ours, rtol=1e-4, atol=1e-5)
    before = onnxruntime.InferenceSession(example.model.SerializeToString())
    assert np.abs(scores - before.run(None, {"x": example.inputs.numpy()})[0]).max() > 1e-3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", zoo.NAMES)
def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(name, device, tmp_path):
    example = zoo.example(name)
    whole = trainer_of(example, device, deterministic=True)
    for _ in range(2):
        whole.step(batch_of(example))
    whole.checkpoint(tmp_path / "checkpoint", extra={"epoch": 3})
    expected = [float(whole.step(batch_of(example))) for _ in range(3)]
    again = trainer_of(example, device, deterministic=True)
    assert again.resume(tmp_path / "checkpoint") == {"epoch": 3}
    assert again.steps == 2
    assert [float(again.step(batch_of(example))) for _ in range(3)] == expected


def test_other_batch_sizes_need_no_new_plan():
    example = zoo.example("cnn")
    trainer = trainer_of(example, "cpu")
    program = trainer.module.runner(training=True).program
    for size in (6, 3, 2):
        batch = {"x": example.inputs[:size], "labels": example.labels[:size]}
        assert torch.isfinite(trainer.step(batch))
    assert trainer.module.runner(training=True).program is program
