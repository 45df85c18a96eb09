"""Each loss and optimizer of onnxruntime-training 1.19.2 trains here as it does there."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest

from onnxtrain import artifacts
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.onnxblock import loss, optim

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "blocks"
RATE = 0.05
CASES = {
    "mse_adamw": (loss.MSELoss(), optim.AdamW()),
    "mse_sum_sgd": (loss.MSELoss(reduction="sum"), optim.SGD()),
    "l1_adamw_decay": (loss.L1Loss(), optim.AdamW(betas=(0.8, 0.99), eps=1e-4, weight_decay=0.1)),
    "l1_sum_sgd_clip": (loss.L1Loss(reduction="sum"), optim.SGD(clip_grad=optim.ClipGradNorm(0.5))),
    "bce_adamw_uncorrected": (loss.BCEWithLogitsLoss(), optim.AdamW(bias_correction=False)),
    "bce_weighted_sgd": (loss.BCEWithLogitsLoss(weight=0.5, pos_weight=3.0), optim.SGD()),
    "ce_adamw_clip": (loss.CrossEntropyLoss(), optim.AdamW(clip_grad=optim.ClipGradNorm(0.3))),
    "ce_ignore_sum_sgd": (loss.CrossEntropyLoss(reduction="sum", ignore_index=1), optim.SGD()),
}


def assert_trains_alike(folder: pathlib.Path, numbers) -> None:
    """Losses, first gradients and last weights are those of the reference."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(RATE)
    batch = [numbers[f"batch/{name}"] for name in module.input_names()]
    losses = []
    for step in range(len(numbers["losses"])):
        losses.append(float(module(*batch)))
        if step == 0:
            for name in ("w1", "b1", "w2"):
                grad = state.parameters[name].grad
                np.testing.assert_allclose(grad, numbers[f"grad/{name}"], rtol=1e-4, atol=1e-6)
        optimizer.step()
        module.lazy_reset_grad()
    np.testing.assert_allclose(losses, numbers["losses"].ravel(), rtol=1e-5)
    for name, parameter in state.parameters:
        np.testing.assert_allclose(
            parameter.data, numbers[f"param/{name}"], rtol=1e-5, atol=1e-6, err_msg=name
        )


def test_every_case_is_there():
    assert {path.name for path in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_their_artifacts_train_here(name):
    assert_trains_alike(GOLDEN / name, np.load(GOLDEN / name / "numbers.npz"))


@pytest.mark.parametrize("name", CASES)
def test_our_artifacts_train_like_theirs(name, tmp_path):
    loss_block, optimizer_block = CASES[name]
    artifacts.generate_artifacts(
        onnx.load(GOLDEN / name / "model.onnx"),
        requires_grad=["w1", "b1", "w2"],
        frozen_params=["b2"],
        loss=loss_block,
        optimizer=optimizer_block,
        artifact_directory=tmp_path,
    )
    assert_trains_alike(tmp_path, np.load(GOLDEN / name / "numbers.npz"))


@pytest.mark.parametrize("name", CASES)
def test_names_of_the_artifacts_are_those_of_the_reference(name, tmp_path):
    loss_block, optimizer_block = CASES[name]
    artifacts.generate_artifacts(
        onnx.load(GOLDEN / name / "model.onnx"),
        requires_grad=["w1", "b1", "w2"],
        frozen_params=["b2"],
        loss=loss_block,
        optimizer=optimizer_block,
        artifact_directory=tmp_path,
    )
    for file in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"):
        ours, theirs = (onnx.load(folder / file).graph for folder in (tmp_path, GOLDEN / name))
        assert [value.name for value in ours.input] == [value.name for value in theirs.input]
        assert len(ours.output) == len(theirs.output)
    steps = [onnx.load(f / "optimizer_model.onnx").graph.node for f in (tmp_path, GOLDEN / name)]
    assert [n.op_type for n in steps[0]] == [n.op_type for n in steps[1]]
    assert list(steps[0][-1].attribute) == list(steps[1][-1].attribute)
