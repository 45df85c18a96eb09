"""Artifacts and checkpoints of onnxruntime-training 1.19.2 train here as they do there."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from onnxtrain import artifacts
from onnxtrain.api import CheckpointState, Module, Optimizer

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "training"
MODELS = ("mlp", "cnn", "transformer")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def load(folder: pathlib.Path, checkpoint: str = "checkpoint", device: str = "cpu"):
    state = CheckpointState.load_checkpoint(folder / checkpoint)
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", device)
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


def inputs_of(name: str, module: Module) -> list[np.ndarray]:
    batch = np.load(GOLDEN / name / "batch.npz")
    return [batch[key] for key in module.input_names()]


def train(name: str, state, module, optimizer, steps: int):
    """Losses of all steps and gradients of the first."""
    inputs, losses, grads = inputs_of(name, module), [], {}
    for step in range(steps):
        losses.append(float(module(*inputs)))
        if step == 0:
            grads = {p.name: p.grad for _, p in state.parameters if p.requires_grad}
        optimizer.step()
        module.lazy_reset_grad()
    return losses, grads


def assert_gradients(found: dict[str, np.ndarray], numbers) -> None:
    """Relative to each gradient, or to the largest one where a gradient is zero but for rounding.

    (A bias in front of a batch normalisation has no influence.)
    """
    largest = max(np.linalg.norm(numbers[f"grad/{name}"]) for name in found)
    for name, grad in found.items():
        expected = numbers[f"grad/{name}"]
        scale = max(np.linalg.norm(expected), 1e-3 * largest)
        error = np.linalg.norm(grad - expected) / scale
        assert error < 1e-4, f"{name}: {error:.1e}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_their_artifacts_train_here(name, device):
    numbers = np.load(GOLDEN / name / "numbers.npz")
    losses, grads = train(name, *load(GOLDEN / name, device=device), len(numbers["losses"]))
    assert_gradients(grads, numbers)
    np.testing.assert_allclose(losses, numbers["losses"].ravel(), rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_our_artifacts_give_their_numbers(name, tmp_path):
    numbers = np.load(GOLDEN / name / "numbers.npz")
    theirs, _, _ = load(GOLDEN / name)
    artifacts.generate_artifacts(
        str(GOLDEN / name / "model.onnx"),
        requires_grad=[n for n, p in theirs.parameters if p.requires_grad],
        frozen_params=[n for n, p in theirs.parameters if not p.requires_grad],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    state, module, optimizer = load(tmp_path)
    losses, grads = train(name, state, module, optimizer, len(numbers["losses"]))
    assert_gradients(grads, numbers)
    np.testing.assert_allclose(losses, numbers["losses"].ravel(), rtol=1e-4)
    largest = max(np.abs(grad).max() for grad in grads.values())
    for parameter, value in state.parameters:
        # Adam moves an element by up to the learning rate whatever the size of its gradient, so
        # where that is zero but for rounding, the direction of the steps is rounding too.
        moved = np.abs(grads.get(parameter, np.inf)) > 1e-4 * largest
        ours, theirs = value.data, numbers[f"param/{parameter}"]
        error = np.abs(ours - theirs)[np.broadcast_to(moved, ours.shape)].max(initial=0)
        assert error < 1e-5, f"{parameter}: {error:.1e}"


@pytest.mark.parametrize("name", MODELS)
def test_their_trained_checkpoint_goes_on_here(name):
    numbers = np.load(GOLDEN / name / "numbers.npz")
    state, module, optimizer = load(GOLDEN / name, "checkpoint_trained")
    assert optimizer.steps_taken == len(numbers["losses"])
    for parameter, value in state.parameters:
        np.testing.assert_array_equal(value.data, numbers[f"param/{parameter}"])
    loss = float(module(*inputs_of(name, module)))
    np.testing.assert_allclose(loss, float(numbers["next_loss"]), rtol=1e-4)
