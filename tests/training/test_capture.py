"""Recorded steps give what ordinary ones give, bit for bit."""

import numpy as np
import onnx.parser
import pytest
import torch

from models import zoo
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.training import trainer as trainers
from onnxtrain.training.trainer import Trainer

DROPOUT = """<ir_version: 9, opset_import: ["": 17]> main (float[b, 8] x) => (float[b, 4] scores)
<float[8, 16] w, float[16, 4] v, float ratio = {0.3}, bool on = {1}> {
  h = MatMul(x, w)
  d = Dropout(h, ratio, on)
  r = Relu(d)
  scores = MatMul(r, v)
}"""


def with_capture(monkeypatch: pytest.MonkeyPatch, capture: bool) -> None:
    def options(**given: object) -> SessionOptions:
        return SessionOptions(**given, capture=capture)  # type: ignore[arg-type]

    monkeypatch.setattr(trainers, "SessionOptions", options)


def dropout_model() -> onnx.ModelProto:
    text = DROPOUT.replace("<float[8, 16] w, float[16, 4] v, ", "<")
    model = onnx.parser.parse_model(text)
    draw = np.random.default_rng(3)
    for name, shape in (("w", (8, 16)), ("v", (16, 4))):
        values = draw.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def batches(name: str, count: int, size: int = 6) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    if name == "dropout":
        shape, classes = (size, 8), 4
    else:
        shape, classes = (size, *zoo.example(name).inputs.shape[1:]), 10
    found = []
    for _ in range(count):
        x = torch.randn(shape, generator=generator)
        if name == "transformer":
            x = torch.randint(0, 50, shape, generator=generator)
        labels = torch.randint(0, classes, (size,), generator=generator)
        found.append({"x": x, "labels": labels})
    return found


def trained(name: str, device: str, steps: int = 12) -> tuple[Trainer, list[float]]:
    model = dropout_model() if name == "dropout" else zoo.example(name).model
    trainer = Trainer(model, loss="cross_entropy", device=device, seed=5, deterministic=True)
    losses = []
    for number, batch in enumerate(batches(name, steps)):
        trainer.lr = 1e-3 * (number + 1)
        losses.append(trainer.step(batch).item())
    return trainer, losses


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*zoo.NAMES, "dropout"])
def test_recorded_steps_are_ordinary_ones(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with_capture(monkeypatch, False)
    plain, expected = trained(name, "cuda")
    with_capture(monkeypatch, True)
    recorded, losses = trained(name, "cuda")
    recorder = recorded.module.runner(training=True).recorder
    assert recorder is not None and recorder.why_not is None and recorder.recordings == 1
    assert losses == expected
    for key, value in plain.parameters.items():
        assert torch.equal(value, recorded.parameters[key]), key


@pytest.mark.gpu
def test_another_batch_size_is_another_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for capture in (False, True):
        with_capture(monkeypatch, capture)
        trainer = Trainer(zoo.example("mlp").model, loss="cross_entropy", device="cuda", seed=5)
        losses = [
            trainer.step(batch).item() for size in (6, 3, 6) for batch in batches("mlp", 4, size)
        ]
        results.append(losses)
    assert results[0] == results[1]
    recorder = trainer.module.runner(training=True).recorder
    assert recorder is not None and recorder.recordings == 2


@pytest.mark.gpu
def test_outputs_of_a_step_outlive_the_next_one() -> None:
    trainer = Trainer(zoo.example("mlp").model, loss="cross_entropy", device="cuda", seed=5)
    losses = [trainer.step(batch) for batch in batches("mlp", 6)]
    assert len({loss.item() for loss in losses}) == 6


def test_the_cpu_records_nothing() -> None:
    trainer, _ = trained("mlp", "cpu", steps=4)
    recorder = trainer.module.runner(training=True).recorder
    assert recorder is not None and recorder.recordings == 0
    assert recorder.why_not == "only steps on a CUDA device are recorded"
