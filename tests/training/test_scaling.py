"""Scaled losses: rules of the scale, steps that overflow, checkpoints."""

from __future__ import annotations

import pathlib
import types

import numpy as np
import onnx
import pytest
import torch

from onnxtrain.amp import DynamicLossScaler
from onnxtrain.errors import ModelError
from onnxtrain.training.scaling import LossScale
from training.mixed import (
    DEVICES,
    OPTIMIZERS,
    PRECISIONS,
    cnn,
    images,
    overflowing,
    trainer_of,
)
from training.small import WEIGHTS, batch_of, mlp


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_scaled_loss_trains_like_one_that_is_not(optimizer, device):
    """Powers of two are exact."""
    batch = batch_of()
    options = {"optimizer": optimizer, "deterministic": True, "clip_grad_norm": 0.5}
    plain = trainer_of(mlp(), device, **options)
    scaled = trainer_of(mlp(), device, loss_scale=1024.0, **options)
    for _ in range(5):
        assert float(plain.step(batch)) == float(scaled.step(batch))
    for name in WEIGHTS:
        assert torch.equal(plain.parameters[name], scaled.parameters[name])
    expected, found = plain.gradients(batch), scaled.gradients(batch)
    assert all(torch.equal(expected[name], found[name]) for name in WEIGHTS)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_that_overflows_is_as_if_it_had_not_been(optimizer, device):
    batch = batch_of()
    options = {"precision": "fp16", "optimizer": optimizer, "loss_scale": 256.0}
    calm, shaken = (trainer_of(mlp(), device, deterministic=True, **options) for _ in range(2))
    for index in range(4):
        calm.step(batch)
        if index in (0, 2):
            shaken.step(overflowing(batch))
        shaken.step(batch)
    assert (calm.steps, shaken.steps) == (4, 4)
    for name in WEIGHTS:
        assert torch.equal(calm.parameters[name], shaken.parameters[name])
    for name, moments in calm.optimizer.state.moments.items():
        for key, tensor in moments.items():
            assert torch.equal(tensor, shaken.optimizer.state.moments[name][key])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("parts", [1, 2])
def test_running_statistics_skip_a_step_that_overflows(parts, device):
    batch = images()
    options = {"precision": "fp16", "loss_scale": 256.0, "deterministic": True}
    calm, shaken = (trainer_of(cnn(), device, **options) for _ in range(2))
    for index in range(4):
        calm.step(batch if parts == 1 else [batch, batch])
        if index in (0, 2):
            shaken.step(overflowing(batch) if parts == 1 else [batch, overflowing(batch)])
        shaken.step(batch if parts == 1 else [batch, batch])
    assert (calm.steps, shaken.steps) == (4, 4)
    for name in calm.mutable:
        assert torch.equal(*(t.state.parameters[name].tensor for t in (calm, shaken)))
    assert np.isfinite(shaken.evaluate([batch]))


def test_the_scale_is_halved_after_an_overflow():
    trainer, batch = trainer_of(mlp(), precision="fp16"), batch_of()
    assert trainer.loss_scale == 2**16
    trainer.step(overflowing(batch))
    trainer.step(overflowing(batch))
    assert (trainer.loss_scale, trainer.steps) == (2**14, 0)
    trainer.step(batch)
    assert (trainer.loss_scale, trainer.steps) == (2**14, 1)


def test_scales_follow_the_rules_of_torch():
    """Against torch's own GradScaler, whose scale is not bounded: the window is never that long."""
    random = np.random.default_rng(0)
    device = torch.device("cpu")
    ours = LossScale(device, first=2.0**10, window=3)
    peer = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    for _ in range(60):
        weight = torch.zeros(2, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.0)
        overflow = random.random() < 0.2
        peer.scale(weight.sum() * (np.inf if overflow else 1.0)).backward()
        peer.step(optimizer)
        peer.update()
        grad = torch.full((2,), np.nan if overflow else 3.0) * ours.scale
        ours.unscale([grad])
        assert bool(ours.finite) is not overflow
        assert overflow or torch.equal(grad, torch.full((2,), 3.0))
        ours.update()
        assert float(ours.scale) == peer.get_scale()


def test_scales_stay_between_their_bounds():
    scaling = LossScale(torch.device("cpu"), first=4.0, window=1, largest=8.0)
    for bad, expected in zip([0, 0, 1, 1, 1, 1], [8, 8, 4, 2, 1, 1], strict=True):
        scaling.unscale([torch.tensor([np.inf if bad else 1.0])])
        scaling.update()
        assert float(scaling.scale) == expected
    assert int(scaling.skipped) == 4


def test_the_first_scale_is_not_above_the_largest():
    scaling = LossScale(torch.device("cpu"), first=2.0**20, largest=8.0)
    assert float(scaling.scale) == 8


def test_a_fixed_scale_is_not_that_of_a_checkpoint(tmp_path: pathlib.Path):
    first, second = (trainer_of(mlp(), loss_scale=scale) for scale in (256.0, 1024.0))
    first.checkpoint(tmp_path / "c")
    second.resume(tmp_path / "c")
    assert second.loss_scale == 1024


def test_the_loss_of_a_function_is_scaled_too():
    batch = batch_of()

    def loss(outputs, given):
        return torch.nn.functional.cross_entropy(outputs["y"], given["labels"])

    plain, scaled = (trainer_of(mlp(), loss=loss, loss_scale=s) for s in (None, 1024.0))
    assert float(plain.step(batch)) == float(scaled.step(batch))
    for name in WEIGHTS:
        assert torch.equal(plain.parameters[name], scaled.parameters[name])


def test_the_rules_of_a_scaler_are_followed():
    rule = DynamicLossScaler(loss_scale=8.0, up_scale_window=2, min_loss_scale=4.0)
    trainer, batch = trainer_of(mlp(), precision="fp16", loss_scale=rule), batch_of()
    seen = []
    for bad in [0, 0, 0, 1, 1, 1, 0, 0]:
        trainer.step(overflowing(batch) if bad else batch)
        rule.update(types.SimpleNamespace(all_finite=not bad))
        seen.append((trainer.loss_scale, rule.loss_scale))
    assert all(ours == theirs for ours, theirs in seen)
    assert {ours for ours, _ in seen} == {4.0, 8.0, 16.0}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_training_goes_on_from_a_checkpoint_exactly(precision, device, tmp_path: pathlib.Path):
    batch = batch_of()
    options = {"precision": precision, "deterministic": True}
    first = trainer_of(mlp(), device, **options)
    first.step(batch)
    if precision == "fp16":
        first.step(overflowing(batch))
    first.step(batch)
    first.checkpoint(tmp_path / "c")
    second = trainer_of(mlp(), device, **options)
    second.resume(tmp_path / "c")
    assert (second.steps, second.loss_scale) == (2, first.loss_scale)
    for _ in range(3):
        assert float(first.step(batch)) == float(second.step(batch))
    for name in WEIGHTS:
        assert torch.equal(first.parameters[name], second.parameters[name])


def test_checkpoints_serve_other_precisions(tmp_path: pathlib.Path):
    batch = batch_of()
    first = trainer_of(mlp(), precision="fp16")
    first.step(overflowing(batch))
    first.step(batch)
    first.checkpoint(tmp_path / "c")
    for precision in ("fp32", "bf16", "fp16"):
        other = trainer_of(mlp(), precision=precision)
        other.resume(tmp_path / "c")
        assert other.steps == 1
        other.step(batch)
        other.checkpoint(tmp_path / precision)
    first.resume(tmp_path / "fp32")
    assert (first.steps, first.loss_scale) == (2, 2**15)


def test_masters_of_half_models_train_with_a_scale(tmp_path: pathlib.Path):
    batch = batch_of(dtype=np.float16)
    trainer = trainer_of(mlp(np.float16), loss_scale="dynamic")
    losses = [float(trainer.step(batch)) for _ in range(10)]
    assert losses[-1] < losses[0]
    assert trainer.loss_scale < 2**16


def test_optimizers_that_cannot_skip_are_refused():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> o (float[1] learning_rate, int64[1] step,'
        " seq(float[N]) params, seq(float[N]) gradients) => (bool[1] done)"
        " { done = Equal(step, step) }"
    )

    class Idle:
        def __call__(self, parameters):
            return None

        def to_model_proto(self):
            return model

    with pytest.raises(ModelError, match="no operator that can skip a step"):
        trainer_of(mlp(), loss_scale="dynamic", optimizer=Idle())
