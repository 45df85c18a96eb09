"""Artifacts of training in 16 bits, run by Module and Optimizer."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain.api import CheckpointState
from onnxtrain.errors import OptionError
from training.small import WEIGHTS, batch_of, load_module, load_optimizer, write_artifacts

BOUNDS = {"bf16": 4 * 2.0**-8, "fp16": 4 * 2.0**-11}
"""Four roundings of the type; losses were seen to be one to two apart."""
OPTIONS = {"requires_grad": list(WEIGHTS), "frozen_params": [], "additional_output_names": None}


def losses(folder: pathlib.Path, steps: int = 20) -> list[float]:
    module = load_module(folder)
    optimizer = load_optimizer(folder, module)
    optimizer.set_learning_rate(0.02)
    batch = batch_of()
    found = []
    for _ in range(steps):
        found.append(float(module(batch["x"], batch["labels"])))
        optimizer.step()
        module.lazy_reset_grad()
    assert optimizer.steps_taken == steps
    return found


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_artifacts_of_16_bits_train_like_those_of_float32(precision, tmp_path: pathlib.Path):
    expected = losses(write_artifacts(tmp_path / "wide", **OPTIONS))
    folder = write_artifacts(tmp_path / "narrow", precision=precision, **OPTIONS)
    np.testing.assert_allclose(losses(folder), expected, rtol=BOUNDS[precision])
    training = onnx.load(folder / "training_model.onnx").graph
    names = [value.name for value in training.input]
    assert ("loss_scale" in names) == (precision == "fp16")
    assert load_module(folder).input_names() == ["x", "labels"]
    evaluation = onnx.load(folder / "eval_model.onnx").graph
    assert not any(node.op_type == "Cast" for node in evaluation.node)


def test_the_exported_model_is_float32(tmp_path: pathlib.Path):
    folder = write_artifacts(tmp_path / "a", precision="fp16", **OPTIONS)
    module = load_module(folder)
    optimizer = load_optimizer(folder, module)
    batch = batch_of()
    module(batch["x"], batch["labels"])
    optimizer.step()
    module.export_model_for_inferencing(tmp_path / "m.onnx", ["y"])
    exported = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(exported, full_check=True)
    assert {t.data_type for t in exported.graph.initializer} == {onnx.TensorProto.FLOAT}
    onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": batch["x"]})
    saved = {p.name: p.data for _, p in module.state.parameters}
    first = CheckpointState.load_checkpoint(folder / "checkpoint").parameters
    assert all(not np.array_equal(saved[name], first[name].data) for name in WEIGHTS)


def test_other_precisions_are_refused(tmp_path: pathlib.Path):
    with pytest.raises(OptionError, match="precision is one of"):
        write_artifacts(tmp_path / "a", precision="fp8")
    assert not list((tmp_path / "a").iterdir())
