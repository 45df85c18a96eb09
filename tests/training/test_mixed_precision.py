"""Training in 16 bits with float32 weights."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from onnxtrain import LoraConfig
from onnxtrain.errors import OptionError
from training.mixed import (
    DEVICES,
    MODELS,
    OPTIMIZERS,
    PRECISIONS,
    sentences,
    trainer_of,
    transformer,
)
from training.small import WEIGHTS, batch_of, mlp, model_of, normal


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_falls_as_in_float32(name, precision, device):
    make, data = MODELS[name]
    batch = data()
    scale = None if precision == "bf16" else 1024.0
    wide = trainer_of(make(), device)
    narrow = trainer_of(make(), device, precision=precision, loss_scale=scale)
    expected, found = ([float(t.step(batch)) for _ in range(40)] for t in (wide, narrow))
    spacing = {"bf16": 2.0**-8, "fp16": 2.0**-11}[precision]
    assert abs(found[0] - expected[0]) < 4 * spacing * expected[0]
    assert abs(found[-1] - expected[-1]) < 8 * spacing * expected[0]
    assert found[-1] < 0.75 * found[0]
    assert narrow.steps == 40
    assert {p.dtype for p in narrow.parameters.values()} == {torch.float32}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_float32_but_for_rounding(name, precision):
    make, data = MODELS[name]
    options = {"precision": precision, "loss_scale": None if precision == "bf16" else 1024.0}
    wide = trainer_of(make()).gradients(data())
    narrow = trainer_of(make(), **options).gradients(data())
    error = sum(float((narrow[k] - wide[k]).square().sum()) for k in wide) ** 0.5
    norm = sum(float(g.square().sum()) for g in wide.values()) ** 0.5
    assert error < norm * {"bf16": 0.05, "fp16": 0.01}[precision]
    assert {g.dtype for g in narrow.values()} == {torch.float32}


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_that_see_nothing_stay_finite(precision, fuse):
    """The most negative float32 is no infinity in 16 bits, of which softmax would make NaN."""
    batch = sentences()
    batch["mask"][0] = False
    trainer = trainer_of(transformer(), precision=precision, loss_scale=None, fuse=fuse)
    assert all(np.isfinite(float(trainer.step(batch))) for _ in range(3))


@pytest.mark.parametrize("loss", ["mse", "l1", "bce", "huber"])
def test_targets_are_not_rounded(loss):
    """A target of 1.001 is 1 in bfloat16, and the loss would not see the difference."""
    model = model_of(
        "(float[N,4] x) => (float[N,3] y) { y = MatMul(x, w) }", {"w": np.zeros((4, 3), np.float32)}
    )
    trainer = trainer_of(model, loss=loss, precision="bf16")
    x = normal(5, 4)
    first, second = (
        float(trainer.loss({"x": x, "target": np.full((5, 3), t, np.float32)}))
        for t in (1.0, 1.001)
    )
    steps = [
        float(trainer_of(model, loss=loss, precision="bf16").step({"x": x, "target": target}))
        for target in (np.full((5, 3), t, np.float32) for t in (1.0, 1.001))
    ]
    np.testing.assert_allclose(steps, [first, second], rtol=1e-6)


def test_evaluation_and_the_saved_model_are_float32(tmp_path: pathlib.Path):
    trainer = trainer_of(mlp(), precision="bf16")
    batch = batch_of()
    for _ in range(5):
        trainer.step(batch)
    trainer.save(tmp_path / "m.onnx")
    saved = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(saved, full_check=True)
    assert saved.graph.node == mlp().graph.node
    assert {t.data_type for t in saved.graph.initializer} == {onnx.TensorProto.FLOAT}
    found = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": batch["x"]})[0]
    np.testing.assert_allclose(found, trainer.predict(batch)["y"], rtol=1e-5, atol=1e-6)
    logits = torch.tensor(found)
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(batch["labels"]))
    np.testing.assert_allclose(float(trainer.loss(batch)), float(expected), rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_torch_function_as_loss_takes_float32(device):
    seen = []

    def loss(outputs, batch):
        seen.append(outputs["y"].dtype)
        return torch.nn.functional.cross_entropy(outputs["y"], batch["labels"])

    batch = batch_of()
    by_name = trainer_of(mlp(), device, precision="fp16")
    by_function = trainer_of(mlp(), device, precision="fp16", loss=loss)
    for _ in range(3):
        expected, found = by_name.step(batch), by_function.step(batch)
        np.testing.assert_allclose(float(found), float(expected), rtol=2e-3)
    assert set(seen) == {torch.float32}
    assert by_function.steps == 3


@pytest.mark.parametrize("precision", PRECISIONS)
def test_several_batches_are_one_step(precision):
    batch = batch_of(12)
    halves = [{k: v[:6] for k, v in batch.items()}, {k: v[6:] for k, v in batch.items()}]
    whole, parts = (trainer_of(mlp(), precision=precision, optimizer="sgd") for _ in range(2))
    np.testing.assert_allclose(float(whole.step(batch)), float(parts.step(halves)), rtol=5e-3)
    for name in WEIGHTS:
        np.testing.assert_allclose(
            whole.parameters[name], parts.parameters[name], rtol=2e-2, atol=2e-4
        )


def test_other_words_are_refused():
    with pytest.raises(OptionError, match="precision is one of"):
        trainer_of(mlp(), precision="half")
    with pytest.raises(OptionError, match="'dynamic', a positive number or None, not 'static'"):
        trainer_of(mlp(), loss_scale="static")
    with pytest.raises(OptionError, match="must be a finite number above 0"):
        trainer_of(mlp(), loss_scale=-1.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_read_copies_of_weights_that_updates_write(optimizer, device):
    trainer, batch = trainer_of(mlp(), device, precision="bf16", optimizer=optimizer), batch_of()
    runner = trainer.module.runner(training=True)
    weights = {f"{name}_compute.copy" for name in WEIGHTS}
    assert weights <= {str(v.name) for v in runner.model.graph.inputs}
    casts = [n for n in runner.model.graph if n.op_type == "Cast"]
    assert [str(n.inputs[0].name) for n in casts] == ["x"]
    assert trainer.module.input_names() == ["x", "labels"]
    for _ in range(5):
        trainer.step(batch)
    pairs = trainer.module.copies.pairs()
    assert {id(weight) for weight, _ in pairs} == set(map(id, trainer.parameters.values()))
    assert all(torch.equal(copy, weight.to(torch.bfloat16)) for weight, copy in pairs)


@pytest.mark.parametrize("device", DEVICES)
def test_weights_that_others_change_are_seen(device):
    trainer, batch = trainer_of(mlp(), device, precision="bf16"), batch_of()
    first = float(trainer.step(batch))
    for tensor in trainer.parameters.values():
        tensor.zero_()
    assert first != pytest.approx(np.log(3), rel=1e-3)
    assert float(trainer.step(batch)) == pytest.approx(np.log(3), rel=1e-3)
    trainer.state.parameters["fc2.bias"] = np.array([9.0, 0.0, 0.0], np.float32)
    labels = np.zeros(6, np.int64)
    assert float(trainer.step({**batch, "labels": labels})) < 0.01


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_step_waits_for_the_device(precision, optimizer):
    options = {"precision": precision, "optimizer": optimizer, "clip_grad_norm": 1.0}
    trainer = trainer_of(mlp(), "cuda", **options)
    batch = {name: torch.as_tensor(array).cuda() for name, array in batch_of().items()}
    for _ in range(5):
        trainer.step(batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            trainer.step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trainer.steps == 10


@pytest.mark.parametrize("precision", PRECISIONS)
def test_adapters_train_in_16_bits(precision, tmp_path: pathlib.Path):
    trainer = trainer_of(mlp(), precision=precision, lora=LoraConfig(rank=2, alpha=4), lr=0.05)
    batch = batch_of()
    losses = [float(trainer.step(batch)) for _ in range(15)]
    assert losses[-1] < losses[0]
    trainer.save(tmp_path / "m.onnx")
    found = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": batch["x"]})[0]
    np.testing.assert_allclose(found, trainer.predict(batch)["y"], rtol=1e-5, atol=1e-5)


def test_frozen_weights_have_copies_too():
    wide = normal(300, 64, seed=1)
    model = model_of(
        "(float[N,300] x) => (float[N,3] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }",
        {"w": wide, "v": normal(64, 3, seed=2)},
    )
    trainer = trainer_of(model, precision="bf16", trainable=["v"])
    graph = trainer.module.runner(training=True).model.graph
    assert {str(v.name) for v in graph.inputs} >= {"w_compute.copy", "v_compute.copy"}
    batch = {"x": normal(8, 300), "labels": np.arange(8) % 3}
    losses = [float(trainer.step(batch)) for _ in range(10)]
    assert losses[-1] < losses[0]
