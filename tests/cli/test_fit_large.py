"""Data on the disk trains, and is continued, exactly like data in memory."""

import pathlib

import numpy as np
import pytest

from cli.small import samples
from onnxtrain.data import lazy

FIT = ("fit", "model.onnx", "--data", "data.npz", "--loss", "cross_entropy", "--device", "cpu",
       "--batch-size", "5", "--val-split", "0.25", "--first-label", "1")  # fmt: skip


@pytest.fixture
def bytes_data(folder: pathlib.Path) -> pathlib.Path:
    """Data that must be cast and regrouped on its way to the model."""
    data = samples()
    x = np.clip(data["x"] * 40 + 128, 0, 255).astype(np.uint8).reshape(-1, 2, 4)
    np.savez("data.npz", x=x, labels=(data["labels"] + 1).astype(np.int32))
    return folder


def test_a_run_on_large_data_is_the_same_and_goes_on_exactly(bytes_data, cli, monkeypatch):
    cli(*FIT, "--steps", "25", "--out", "whole.onnx", "--log", "whole.jsonl")
    monkeypatch.setattr(lazy, "LARGE", 0)
    part = (*FIT, "--out", "part.onnx", "--checkpoint", "run.ckpt", "--log", "part.jsonl")
    cli(*part, "--steps", "11")
    assert "continuing after step 11" in cli(*part, "--steps", "25", "--resume")
    assert pathlib.Path("whole.onnx").read_bytes() == pathlib.Path("part.onnx").read_bytes()


def test_other_large_data_is_not_gone_on_with(bytes_data, cli, monkeypatch):
    monkeypatch.setattr(lazy, "LARGE", 0)
    cli(*FIT, "--steps", "2", "--checkpoint", "run.ckpt")
    with np.load("data.npz") as file:
        changed = {name: file[name].copy() for name in file.files}
    changed["x"][-1] += 1
    np.savez("data.npz", **changed)
    told = cli(*FIT, "--steps", "3", "--checkpoint", "run.ckpt", "--resume", code=1)
    assert "the settings are not those of the training that wrote it" in told
