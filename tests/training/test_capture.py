"""Recorded steps give what ordinary ones give, bit for bit; on the CPU a tape records them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch

from models import zoo
from onnxtrain.errors import NodeError
from onnxtrain.kernels import lasting
from onnxtrain.runtime import capture
from onnxtrain.runtime.capture import Recorder
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.training import trainer as trainers
from onnxtrain.training.lr_scheduler import CosineLRScheduler
from onnxtrain.training.trainer import Trainer
from training.replay import stand_in
from training.small import load_module, load_optimizer, mlp, model_of, normal, write_artifacts

STEPS = 20
OPTIMIZERS = ("adamw", "adam", "sgd", "momentum", "lamb")
Batches = list[dict[str, torch.Tensor]]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where steps are recorded."""
    if request.param == "cpu":
        stand_in(monkeypatch)
    return str(request.param)


@pytest.fixture
def no_waiting(place: str) -> Iterator[None]:
    """Every wait of the host for the device is an error (the CPU has none)."""
    if place == "cpu":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def with_capture(monkeypatch: pytest.MonkeyPatch, capture: bool) -> None:
    def options(**given: object) -> SessionOptions:
        return SessionOptions(**given, capture=capture)  # type: ignore[arg-type]

    monkeypatch.setattr(trainers, "SessionOptions", options)


def with_dropout(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a Dropout before its last node."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    last = copy.graph.node[-1]
    extra = onnx.helper.make_node(
        "Dropout", [last.input[0], "ratio", "on"], ["dropped"], name="dropout"
    )
    last.input[0] = "dropped"
    copy.graph.node.insert(len(copy.graph.node) - 1, extra)
    for name, value in (("ratio", np.float32(0.3)), ("on", np.bool_(True))):
        copy.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return copy


def model_named(name: str) -> onnx.ModelProto:
    return with_dropout(zoo.example("transformer").model) if name == "dropout" else zoo_model(name)


def zoo_model(name: str) -> onnx.ModelProto:
    return zoo.example(name).model


def batches(name: str, count: int, size: int = 6, device: str = "cpu") -> Batches:
    generator = torch.Generator().manual_seed(1)
    kind = "transformer" if name == "dropout" else name
    shape = (size, *zoo.example(kind).inputs.shape[1:])
    found = []
    for _ in range(count):
        x = torch.randn(shape, generator=generator)
        if kind == "transformer":
            x = torch.randint(0, 50, shape, generator=generator)
        labels = torch.randint(0, 10, (size,), generator=generator)
        found.append({"x": x.to(device), "labels": labels.to(device)})
    return found


def trainer_of(name: str, device: str, **options: Any) -> Trainer:
    return Trainer(
        model_named(name),
        loss="cross_entropy",
        device=device,
        seed=5,
        deterministic=True,
        **options,
    )


def recorder_of(trainer: Trainer) -> Recorder:
    """The recorder of whole steps, which must not have met an obstacle."""
    recorder = trainer._whole.recorder
    assert recorder is not None and recorder.why_not is None
    return recorder


def trained(name: str, device: str, **options: Any) -> tuple[Trainer, list[float]]:
    trainer = trainer_of(name, device, **options)
    schedule = CosineLRScheduler(trainer.optimizer, 3, STEPS, 0.01)
    losses = []
    for batch in batches(name, STEPS):
        losses.append(trainer.step(batch).item())
        schedule.step()
    return trainer, losses


def same_parameters(one: Trainer, other: Trainer) -> None:
    for key, value in one.parameters.items():
        assert torch.equal(value, other.parameters[key]), key
    for name, moments in one.optimizer.state.moments.items():
        for key, value in moments.items():
            assert torch.equal(value, other.optimizer.state.moments[name][key]), (name, key)


@pytest.mark.parametrize("name", [*zoo.NAMES, "dropout"])
def test_recorded_steps_are_ordinary_ones(
    place: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with_capture(monkeypatch, False)
    plain, expected = trained(name, place, clip_grad_norm=1.0)
    with_capture(monkeypatch, True)
    recorded, losses = trained(name, place, clip_grad_norm=1.0)
    assert recorder_of(recorded).recordings == 1
    assert losses == expected and len(set(losses)) == STEPS
    assert recorded.steps == plain.steps == STEPS
    same_parameters(plain, recorded)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_recorded(
    place: str, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    with_capture(monkeypatch, False)
    plain, expected = trained("mlp", place, optimizer=optimizer)
    with_capture(monkeypatch, True)
    recorded, losses = trained("mlp", place, optimizer=optimizer)
    assert recorder_of(recorded).recordings == 1
    assert losses == expected
    same_parameters(plain, recorded)


def test_decay_after_the_step_is_recorded(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_capture(monkeypatch, False)
    plain, expected = trained("mlp", place, weight_decay=0.1)
    with_capture(monkeypatch, True)
    recorded, losses = trained("mlp", place, weight_decay=0.1)
    assert losses == expected and recorder_of(recorded).recordings == 1
    same_parameters(plain, recorded)


def test_another_batch_size_is_another_recording(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for captured in (False, True):
        with_capture(monkeypatch, captured)
        trainer = trainer_of("mlp", place)
        losses = [
            trainer.step(batch).item() for size in (6, 3, 6) for batch in batches("mlp", 4, size)
        ]
        results.append(losses)
    assert results[0] == results[1]
    assert recorder_of(trainer).recordings == 2


def test_only_so_many_shapes_are_remembered(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MOST", 2)
    trainer = trainer_of("mlp", place)
    for size in (2, 3, 4, 5):
        for batch in batches("mlp", 3, size):
            trainer.step(batch)
    assert recorder_of(trainer).recordings == 2


def test_several_batches_a_step(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for captured in (False, True):
        with_capture(monkeypatch, captured)
        trainer = trainer_of("dropout", place)
        parts = [[*batches("dropout", 2, 6), *batches("dropout", 1, 3)]] * 5
        found.append((trainer, [trainer.step(batch).item() for batch in parts]))
    (plain, expected), (recorded, losses) = found
    assert losses == expected
    same_parameters(plain, recorded)
    micro = recorded.module.runner(training=True).recorder
    update = recorded.optimizer.recorder
    assert micro is not None and micro.why_not is None and micro.recordings == 3
    assert update is not None and update.why_not is None and update.recordings == 1


def test_training_goes_on_from_a_checkpoint(place: str, tmp_path: pathlib.Path) -> None:
    data = batches("dropout", 12)
    whole = trainer_of("dropout", place)
    for number, batch in enumerate(data):
        if number == 6:
            whole.checkpoint(tmp_path / "here")
        whole.step(batch)
    again = trainer_of("dropout", place)
    for batch in data[:5]:
        again.step(batch)
    assert recorder_of(again).recordings == 1
    again.resume(tmp_path / "here")
    for batch in data[6:]:
        again.step(batch)
    assert again.steps == 12
    same_parameters(whole, again)


def test_no_step_waits_for_the_device(place: str, request: pytest.FixtureRequest) -> None:
    data = batches("dropout", 8, device=place)
    several = [batches("dropout", 2, device=place)] * 5
    trainer = trainer_of("dropout", place, clip_grad_norm=1.0)
    for batch in data[:2]:
        trainer.step(batch)
    trainer.step(data[2])
    trainer.step(several[0])
    trainer.step(several[1])
    trainer.step(several[2])
    request.getfixturevalue("no_waiting")
    losses = []
    for number, batch in enumerate(data[3:]):
        trainer.lr = 1e-3 * number
        losses.append(trainer.step(batch))
    losses += [trainer.step(batch) for batch in several[3:]]
    assert all(loss.device.type == place for loss in losses)
    assert recorder_of(trainer).recordings == 1


def test_ordinary_steps_do_not_wait_either(
    place: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with_capture(monkeypatch, False)
    data = batches("mlp", 4, device=place)
    trainers_ = [trainer_of("mlp", place, optimizer=name) for name in OPTIMIZERS]
    for trainer in trainers_:
        trainer.step(data[0])
    request.getfixturevalue("no_waiting")
    for trainer in trainers_:
        for batch in data[1:]:
            trainer.step(batch)
        assert trainer.steps == 4


def test_outputs_of_a_step_outlive_the_next_one(place: str) -> None:
    trainer = trainer_of("mlp", place)
    losses = [trainer.step(batch) for batch in batches("mlp", 6)]
    assert len({loss.item() for loss in losses}) == 6


def test_module_and_optimizer_are_recorded_apart(place: str, folder: pathlib.Path) -> None:
    found = []
    for captured in (False, True):
        options = SessionOptions(capture=captured, seed=3)
        module = load_module(
            write_artifacts(folder.parent / f"apart-{place}"), device=place, session_options=options
        )
        optimizer = load_optimizer(folder.parent / f"apart-{place}", module)
        losses = []
        for number in range(8):
            optimizer.set_learning_rate(0.01 * (number + 1))
            x = torch.from_numpy(normal(6, 4, seed=number)).to(place)
            labels = torch.arange(6, device=place) % 3
            losses.append(module(x, labels)[0].item())
            optimizer.step()
            if number % 3:
                module.lazy_reset_grad()
        weights = {name: p.data for name, p in module.state.parameters}
        found.append((losses, optimizer.steps_taken, weights))
    (expected, count, old), (losses, taken, new) = found
    assert losses == expected and taken == count == 8
    assert all(np.array_equal(old[name], new[name]) for name in old)
    assert optimizer.recorder is not None and optimizer.recorder.recordings == 1


def test_a_step_that_cannot_be_recorded_is_an_ordinary_one(place: str) -> None:
    model = model_of(
        """(float[N,4] x) => (float[N,3] y) {
            y0 = MatMul(x, w)
            at = NonZero(y0)
            first = Gather<axis=0>(at, zero)
            picked = Gather<axis=0>(y0, first)
            sum = ReduceSum<keepdims=0>(picked)
            y = Add(y0, sum)
        }""",
        {"w": normal(4, 3), "zero": np.array(0)},
    )
    trainer = Trainer(model, loss="cross_entropy", device=place, seed=5)
    data = {"x": normal(6, 4), "labels": np.arange(6) % 3}
    losses = [trainer.step(data).item() for _ in range(5)]
    recorder = trainer._whole.recorder
    assert recorder is not None and recorder.why_not is not None
    assert "NonZero" in recorder.why_not
    assert losses == sorted(losses, reverse=True)
    update = trainer.optimizer.recorder
    assert trainer._whole.direct or (update is not None and update.recordings == 1)


def test_a_recording_that_fails_leaves_an_ordinary_step(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_capture(monkeypatch, False)
    plain = trainer_of("dropout", place)
    with_capture(monkeypatch, True)
    trainer = trainer_of("dropout", place)
    recorder = recorder_of(trainer)
    name = "update_from" if trainer._whole.direct else "update"
    update = getattr(trainer.optimizer, name)

    def waiting(*given: Any) -> Any:
        if lasting._open and place == "cuda":
            torch.cuda.synchronize()
        elif lasting._open:
            raise RuntimeError("not while it is recorded\nand more")
        return update(*given)

    monkeypatch.setattr(trainer.optimizer, name, waiting)
    for batch in batches("dropout", 6):
        assert torch.equal(trainer.step(batch), plain.step(batch))
        if recorder.why_not is not None:
            monkeypatch.setattr(trainer.optimizer, name, update)
    assert recorder.why_not is not None and recorder.recordings == 0
    same_parameters(plain, trainer)


def test_an_error_in_a_step_updates_nothing(place: str) -> None:
    trainer = Trainer(mlp(), loss="cross_entropy", device=place)
    before = {name: value.clone() for name, value in trainer.parameters.items()}
    labels = torch.arange(5) % 3
    with pytest.raises(NodeError):
        trainer.step({"x": torch.from_numpy(normal(6, 4)), "labels": labels})
    assert trainer.steps == 0
    assert all(torch.equal(before[name], value) for name, value in trainer.parameters.items())


def test_the_cpu_records_nothing() -> None:
    trainer, _ = trained("mlp", "cpu")
    recorders = trainer.module.runner(training=True).recorder, trainer._whole.recorder
    for recorder in recorders:
        assert recorder is not None and recorder.recordings == 0
        assert recorder.why_not == "only steps on a CUDA device are recorded"
