"""Ten models go through ``fit`` from the command line and learn what torch learns."""

import json
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "models"))
from cli.ten_models import NAMES, SAMPLES, brought, torch_losses
from onnxtrain import InferenceSession
from onnxtrain.cli import app
from onnxtrain.cli.fitting.loop import Loop
from onnxtrain.data import Batches, Order

BATCH, EPOCHS = 8, 6
STEPS = EPOCHS * SAMPLES // BATCH
RUN = ("--batch-size", BATCH, "--epochs", EPOCHS, "--device", "cpu", "--no-dropout")
NOISE = 0.03
"""Share of torch's own progress that the losses may be apart."""


def prepared(name: str, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    it = brought(name)
    onnx.save(it.model, "model.onnx")
    np.savez("data.npz", **it.data)
    return it, ("fit", "model.onnx", "--data", "data.npz", *it.options, "--lr", it.lr, *RUN)


def by_onnxruntime(path: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Without optimisations: one replaces quantised layers by others that round elsewhere."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_learns_as_in_torch(name, tmp_path, monkeypatch, cli):
    it, line = prepared(name, tmp_path, monkeypatch)
    cli(*line, "--log", "log.jsonl", "--log-every", 1)
    entries = [json.loads(text) for text in pathlib.Path("log.jsonl").read_text().splitlines()]
    ours = np.array([entry["loss"] for entry in entries if "loss" in entry])
    batches = Batches(it.data, Order(SAMPLES, BATCH, 0))
    theirs = np.array(torch_losses(it, [batches.at(step) for step in range(STEPS)]))
    per_epoch = theirs.reshape(EPOCHS, -1).mean(axis=1)
    progress = per_epoch[0] - per_epoch[-1]
    assert progress > 0.1 * per_epoch[0]
    np.testing.assert_allclose(
        ours.reshape(EPOCHS, -1).mean(axis=1), per_epoch, rtol=0, atol=NOISE * progress
    )
    onnx.checker.check_model("trained.onnx")
    expected = by_onnxruntime("trained.onnx", it.inputs)
    found = InferenceSession("trained.onnx").run(None, it.inputs)[0]
    assert np.abs(found - expected).max() < 1e-4 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm", "qdq"])
def test_a_broken_run_continues_bit_for_bit(name, tmp_path, monkeypatch, cli):
    _, line = prepared(name, tmp_path, monkeypatch)
    cli(*line, "--out", "whole.onnx")
    kept = Loop._step

    def dies(self, *args):
        kept(self, *args)
        if self.position == 14:
            raise SystemExit(9)

    monkeypatch.setattr(Loop, "_step", dies)
    part = [str(word) for word in (*line, "--out", "part.onnx", "--checkpoint-every", 5)]
    assert CliRunner().invoke(app, part).exit_code == 9
    monkeypatch.setattr(Loop, "_step", kept)
    assert "continuing after step 10" in cli(*part, "--resume")
    assert pathlib.Path("whole.onnx").read_bytes() == pathlib.Path("part.onnx").read_bytes()
