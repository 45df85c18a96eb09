"""Training in 16 bits from the command line."""

import pathlib

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

FIT = ("fit", "model.onnx", "--data", "data.npz", "--loss", "cross_entropy", "--device", "cpu")
CALM = ("--no-dropout", "--lr", "0.02", "--steps", "6")


def weights(path: str) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_trained_model_is_float32_and_near_that_of_float32(folder, cli, precision):
    cli(*FIT, *CALM, "--out", "wide.onnx")
    cli(*FIT, *CALM, "--precision", precision, "--out", "narrow.onnx")
    before, wide, narrow = (weights(f"{name}.onnx") for name in ("model", "wide", "narrow"))
    moved = sum(float(np.square(wide[n] - before[n]).sum()) for n in wide) ** 0.5
    apart = sum(float(np.square(wide[n] - narrow[n]).sum()) for n in wide) ** 0.5
    assert 0 < apart < 0.2 * moved
    assert {a.dtype for a in narrow.values()} == {a.dtype for a in before.values()}


def test_a_continued_run_is_the_same(folder, cli):
    narrow = (*FIT, "--no-dropout", "--lr", "0.02", "--precision", "fp16")
    cli(*narrow, "--steps", "8", "--out", "whole.onnx")
    cli(*narrow, "--steps", "4", "--out", "part.onnx", "--checkpoint", "part.ckpt")
    cli(*narrow, "--steps", "8", "--out", "part.onnx", "--checkpoint", "part.ckpt", "--resume")
    assert pathlib.Path("whole.onnx").read_bytes() == pathlib.Path("part.onnx").read_bytes()
