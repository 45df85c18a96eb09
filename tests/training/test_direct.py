"""Gradients that go from the step to the update without buffers: the same weights come out."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import pytest
import torch

from models import zoo
from onnxtrain import onnxblock
from onnxtrain.training import trainer as trainers
from onnxtrain.training.trainer import Trainer
from onnxtrain.training.whole import WholeStep
from onnxtrain.transforms import recipe
from onnxtrain.transforms.backward import join
from training.replay import stand_in
from training.small import batch_of, load_module, load_optimizer, write_artifacts

STEPS = 4


@pytest.fixture(params=["eager", "recorded", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where steps run; on the CPU as they are planned for a GPU."""
    monkeypatch.setattr(recipe, "join", lambda model, **_: join(model, on_gpu=True))
    if request.param == "recorded":
        stand_in(monkeypatch)
    return "cuda" if request.param == "cuda" else "cpu"


def batches(name: str, count: int) -> list[dict[str, torch.Tensor]]:
    shape = (6, *zoo.example(name).inputs.shape[1:])
    words = name == "transformer"
    return [
        {
            "x": torch.randint(0, 50, shape) if words else torch.randn(shape),
            "labels": torch.randint(0, 10, (6,)),
        }
        for _ in range(count)
    ]


def trainer_of(name: str, place: str, **options: Any) -> Trainer:
    model = zoo.example(name).model
    return Trainer(model, loss="cross_entropy", device=place, seed=5, lr=0.01, **options)


def both(
    monkeypatch: pytest.MonkeyPatch, name: str, place: str, **options: Any
) -> tuple[Trainer, Trainer]:
    """A trainer whose gradients go past their buffers, and one whose gradients do not."""
    found = []
    for direct in (True, False):
        monkeypatch.setattr(trainers, "WholeStep", functools.partial(WholeStep, direct=direct))
        found.append(trainer_of(name, place, **options))
        assert found[-1]._whole.direct == direct
    return found[0], found[1]


def same(one: Trainer, other: Trainer, tolerance: float) -> None:
    for key, value in one.parameters.items():
        true = other.parameters[key]
        torch.testing.assert_close(value, true, rtol=tolerance, atol=tolerance, msg=key)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("clip", [0.5, 1e6])
def test_steps_without_buffers(
    place: str, monkeypatch: pytest.MonkeyPatch, optimizer: str, clip: float
) -> None:
    direct, plain = both(monkeypatch, "cnn", place, optimizer=optimizer, clip_grad_norm=clip)
    before = {name: value.clone() for name, value in direct.parameters.items()}
    for batch in batches("cnn", STEPS):
        torch.testing.assert_close(direct.step(batch), plain.step(batch), rtol=1e-5, atol=1e-5)
    # a factor in the update is rounded once less than clipped gradients
    same(direct, plain, 1e-5)
    assert direct.steps == plain.steps == STEPS
    assert any(not torch.equal(before[name], w) for name, w in direct.parameters.items())


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_nothing_is_rounded_otherwise(
    place: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    direct, plain = both(monkeypatch, name, place, deterministic=True)
    for batch in batches(name, 4):
        assert torch.equal(direct.step(batch), plain.step(batch))
    for key, value in direct.parameters.items():
        assert torch.equal(value, plain.parameters[key]), key


@pytest.mark.parametrize(("optimizer", "steps"), [("adamw", 1), ("sgd", STEPS)])
def test_sixteen_bit_gradients_are_not_widened(
    place: str, monkeypatch: pytest.MonkeyPatch, optimizer: str, steps: int
) -> None:
    """AdamW takes one step: a weight that differs in its last bit may be another one in 16 bits,
    and AdamW would make as much of what differs in its gradient as of the gradient."""
    options = {"precision": "bf16", "clip_grad_norm": 0.5, "optimizer": optimizer}
    direct, plain = both(monkeypatch, "transformer", place, **options)
    for batch in batches("transformer", steps):
        direct.step(batch)
        plain.step(batch)
    same(direct, plain, 1e-5)
    states = direct.optimizer.state.moments, plain.optimizer.state.moments
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-12)


def test_one_step_over_several_batches_still_adds_up(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct, plain = both(monkeypatch, "mlp", place, clip_grad_norm=0.5)
    one, two, three = batches("mlp", 3)
    for trainer in (direct, plain):
        trainer.step(one)
        trainer.step([two, three])
        trainer.step(one)
    same(direct, plain, 1e-6)


def test_buffers_are_left_alone(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    direct, _ = both(monkeypatch, "mlp", place)
    one, two = batches("mlp", 2)
    asked = direct.gradients(one)
    direct.step(two)
    for parameter in direct.state.parameters.in_order(trainable=True):
        assert parameter.grad_tensor is not None
        assert torch.equal(parameter.grad_tensor, asked[parameter.name])


@pytest.mark.parametrize(
    "options", [{"optimizer": "lamb", "clip_grad_norm": 1.0}, {"optimizer": "momentum"},
                {"precision": "fp16"}]
)  # fmt: skip
def test_updates_that_change_gradients_keep_their_buffers(
    place: str, options: dict[str, Any]
) -> None:
    trainer = trainer_of("mlp", place, **options)
    assert not trainer._whole.direct
    assert all(torch.isfinite(trainer.step(batch)) for batch in batches("mlp", 3))


def test_modules_show_clipped_gradients(place: str, tmp_path: pathlib.Path) -> None:
    block = onnxblock.optim.SGD(clip_grad=onnxblock.optim.ClipGradNorm(0.01))
    folder = write_artifacts(tmp_path, optimizer=block)
    module = load_module(folder, device=place)
    optimizer = load_optimizer(folder, module)
    assert "HandOver" in {step.kernel.op for step in module.runner(training=True).plan.block.steps}
    given = batch_of()
    inputs = [given[name] for name in module.input_names()]
    trained = module.parameters_in_order(trainable_only=True)

    def norm() -> float:
        return float(torch.cat([p.grad_tensor.flatten() for p in trained]).norm())

    for _ in range(4):
        module(*inputs)
        assert norm() > 0.05
        optimizer.step()
        assert norm() == pytest.approx(0.01, rel=1e-3)
        module.lazy_reset_grad()


def test_modules_add_gradients_up(place: str, tmp_path: pathlib.Path) -> None:
    folder = write_artifacts(tmp_path)
    module = load_module(folder, device=place)
    given = batch_of()
    inputs = [given[name] for name in module.input_names()]
    trained = module.parameters_in_order(trainable_only=True)
    module(*inputs)
    once = [p.grad_tensor.clone() for p in trained]
    module(*inputs)
    for parameter, value in zip(trained, once, strict=True):
        torch.testing.assert_close(parameter.grad_tensor, 2 * value)
