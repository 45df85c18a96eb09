"""Files that onnxruntime's optimizers wrote train as the files did before."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import numpy as np
import onnx
import pytest
import torch
from architectures import Example, example

from onnxtrain import Trainer

onnxruntime = pytest.importorskip(
    "onnxruntime", minversion="1.31", reason="other versions fuse other operators"
)
LEVELS = onnxruntime.GraphOptimizationLevel
FUSED = {
    "mobilenetv3": {"FusedConv"},
    "unet": set(),
    "vit": {"BiasGelu", "SkipLayerNormalization"},
    "bert": {"BiasGelu", "FusedGemm", "SkipLayerNormalization"},
    "gpt2": {"FastGelu", "SkipLayerNormalization"},
    "llama": {"QuickGelu"},
    "lstm": set(),
}
"""Operators of com.microsoft that a session puts into a model."""
TRANSFORMERS = {"vit": {"BiasGelu"}, "bert": {"BiasGelu"}, "gpt2": {"FastGelu"}, "llama": set()}
"""The same for the optimizer of transformers."""


def by_session(model: onnx.ModelProto, path: pathlib.Path) -> onnx.ModelProto:
    """What a session writes for any processor."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return onnx.load(path)


def fused_in(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}


def trained(whole: Example, model: onnx.ModelProto) -> tuple[list[float], Trainer]:
    """The losses of three steps."""

    def loss(outputs: Mapping[str, torch.Tensor], batch: Mapping[str, torch.Tensor]):
        return whole.loss(outputs["scores"], batch["labels"])

    inputs = whole.batch(3, 6)
    batch = {**inputs, "labels": whole.labels(whole.scores(inputs))}
    trainer = Trainer(model, loss=loss, device="cpu", optimizer="sgd", lr=1e-2)
    return [float(trainer.step(batch)) for _ in range(3)], trainer


@pytest.mark.parametrize("name", FUSED)
def test_a_file_that_a_session_optimized_trains_as_before(name, tmp_path):
    whole = example(name)
    model = by_session(whole.model, tmp_path / "optimized.onnx")
    assert fused_in(model) == FUSED[name]
    losses, trainer = trained(whole, model)
    expected, before = trained(whole, whole.model)
    # the head of GPT-2 is a transposed copy of its embedding then, and not the same weight
    tied = len(trainer.parameters) - len(before.parameters)
    assert tied == (name == "gpt2")
    same = 1 if tied else 3
    np.testing.assert_allclose(losses[:same], expected[:same], rtol=1e-5)
    assert losses[2] < losses[0]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_file_of_the_optimizer_of_transformers_trains_as_before(name, tmp_path, monkeypatch):
    # its modules import each other by names of their own
    monkeypatch.syspath_prepend(pathlib.Path(onnxruntime.__file__).parent / "transformers")
    transformers = pytest.importorskip(
        "onnxruntime.transformers.optimizer", reason="the optimizer needs packages of its own"
    )
    whole = example(name)
    onnx.save(whole.model, tmp_path / "model.onnx")
    kind = "bert" if name == "llama" else name
    optimized = transformers.optimize_model(
        str(tmp_path / "model.onnx"), model_type=kind, opt_level=0
    )
    assert fused_in(optimized.model) == TRANSFORMERS[name]
    losses, trainer = trained(whole, optimized.model)
    np.testing.assert_allclose(losses, trained(whole, whole.model)[0], rtol=1e-5)

    trainer.save(tmp_path / "trained.onnx")
    inputs = whole.batch(2, 5)
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    (scores,) = session.run(None, {key: value.numpy() for key, value in inputs.items()})
    np.testing.assert_allclose(scores, trainer.predict(inputs)["scores"], rtol=1e-4, atol=1e-5)
