"""Steps with generated kernels give what steps of separate operators give."""

from __future__ import annotations

import functools
from typing import Any

import onnx
import pytest
import torch

from onnxtrain.runtime.options import SessionOptions
from onnxtrain.training import trainer as trainers
from onnxtrain.training.trainer import Trainer
from training.replay import stand_in

GATED = """
    <ir_version: 10, opset_import: ["" : 20]>
    gated (float[6, 8] x) => (float[6, 4] y) {
        g = MatMul(x, gate) u = MatMul(x, up) s = Sigmoid(g) a = Mul(g, s) m = Mul(a, u)
        r = Add(m, x) o = Relu(r) d = Mul(o, scale) y = MatMul(d, head)
    }
"""
SHAPES = {"gate": (8, 8), "up": (8, 8), "scale": (8,), "head": (8, 4)}


@pytest.fixture(params=["eager", "recorded", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "recorded":
        stand_in(monkeypatch)
    return "cuda" if request.param == "cuda" else "cpu"


def model() -> onnx.ModelProto:
    found = onnx.parser.parse_model(GATED)
    generator = torch.Generator().manual_seed(0)
    for name, shape in SHAPES.items():
        value = torch.randn(shape, generator=generator).numpy()
        found.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return found


def trained(
    monkeypatch: pytest.MonkeyPatch, place: str, **options: Any
) -> tuple[list[str], list[float]]:
    monkeypatch.setattr(trainers, "SessionOptions", functools.partial(SessionOptions, **options))
    trainer = Trainer(model(), loss="cross_entropy", lr=0.01, device=place, fuse=False)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(5):
        x = torch.randn((6, 8), generator=generator)
        labels = torch.randint(0, 4, (6,), generator=generator)
        losses.append(float(trainer.step({"x": x, "labels": labels})))
    steps = trainer.module.runner(training=True).plan.block.steps
    return [step.kernel.op for step in steps], losses


def test_compiled_steps(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ops, losses = trained(monkeypatch, place, compiled=True)
    plain, expected = trained(monkeypatch, place, compiled=False)
    assert ops.count("Elementwise") >= 3 and "Elementwise" not in plain
    assert len(ops) < len(plain)
    assert losses == pytest.approx(expected, rel=1e-6)
    assert len(set(losses)) == 5


def test_kernels_are_generated_for_a_gpu(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ops, _ = trained(monkeypatch, place)
    assert ("Elementwise" in ops) == (place == "cuda")
