"""Models of every age and type train: opsets, IR versions, element types, odd weights."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from onnxtrain import Trainer
from onnxtrain.training.build import LARGE
from onnxtrain.transforms.training_graph import BUFFER_SUFFIX
from training.small import batch_of, mlp, model_of, normal

BATCH = batch_of()
IMAGES = {"x": normal(4, 2, 6, 6, seed=7), "labels": np.array([0, 1, 2, 0])}


def trainer_of(model: onnx.ModelProto, **options) -> Trainer:
    given = {"loss": "cross_entropy", "device": "cpu", "seed": 0, "lr": 0.02}
    return Trainer(model, **{**given, **options})


def check_trains(model: onnx.ModelProto, batch, tmp_path, steps: int = 8, **options) -> Trainer:
    """It learns, and what it saves gives its predictions in onnxruntime."""
    trainer = trainer_of(model, **options)
    losses = [float(trainer.step(batch)) for _ in range(steps)]
    assert losses[-1] < 0.9 * losses[0], losses
    trainer.save(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    (scores,) = session.run(None, {"x": batch["x"]})
    ours = trainer.predict({"x": batch["x"]})["y"].numpy()
    exact = 1e-2 if scores.dtype == np.float16 else 1e-4
    np.testing.assert_allclose(scores, ours, rtol=exact, atol=exact / 10)
    return trainer


@pytest.mark.parametrize(("dtype", "name"), [(np.float64, "float64"), (np.float16, "float32")])
def test_element_types(dtype, name, tmp_path):
    trainer = check_trains(mlp(dtype), batch_of(dtype=dtype), tmp_path)
    assert all(str(t.dtype) == f"torch.{name}" for t in trainer.parameters.values())
    grads = trainer.gradients(batch_of(dtype=dtype))
    assert all(str(t.dtype) == f"torch.{name}" for t in grads.values())


OLD = """(float[N,2,6,6] x) => (float[N,3] y) {{
    c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, conv, bias)
    n = BatchNormalization(c, scale, shift, mean, var)
    r = Relu(n)
    {clip}
    p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(k)
    {mean}
    {squeeze}
    {drop}
    y = MatMul(d, head)
}}"""
ATTRIBUTES = {
    "clip": "k = Clip<min=0.0, max=6.0>(r)",
    "mean": "m = ReduceMean<axes=[2,3], keepdims=1>(p)",
    "squeeze": "s = Squeeze<axes=[2,3]>(m)",
    "drop": "d = Dropout<ratio=0.0>(s)",
}
INPUTS = {
    "clip": "k = Clip(r, low, high)",
    "mean": "m = ReduceMean<axes=[2,3], keepdims=1>(p)",
    "squeeze": "s = Squeeze(m, axes)",
    "drop": "d = Dropout(s, none)",
}


def convolutional(opset: int, ir_version: int = 8) -> onnx.ModelProto:
    """A small network written as its opset wants it."""
    weights = {
        "conv": normal(8, 2, 3, 3, seed=1),
        "bias": normal(8, seed=2),
        "scale": np.ones(8, np.float32),
        "shift": np.zeros(8, np.float32),
        "mean": np.zeros(8, np.float32),
        "var": np.ones(8, np.float32),
        "head": normal(8, 3, seed=3),
    }
    forms = dict(ATTRIBUTES)
    if opset >= 11:
        forms["clip"] = INPUTS["clip"]
        weights |= {"low": np.float32(0), "high": np.float32(6)}
    if opset >= 12:
        forms["drop"] = INPUTS["drop"]
        weights["none"] = np.float32(0)
    if opset >= 13:
        forms["squeeze"] = INPUTS["squeeze"]
        weights["axes"] = np.array([2, 3])
    if opset >= 18:
        forms["mean"] = "m = ReduceMean<keepdims=1>(p, axes)"
    return model_of(OLD.format(**forms), weights, opset=opset, ir_version=ir_version)


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 15, 17, 18, 21])
def test_opsets(opset, tmp_path):
    trainer = check_trains(convolutional(opset), IMAGES, tmp_path, steps=12, lr=0.05)
    assert set(trainer.parameters) == {"conv", "bias", "scale", "shift", "head"}


@pytest.mark.parametrize("opset", [9, 12])
def test_old_opsets_have_the_gradients_of_the_new_one(opset):
    expected = trainer_of(convolutional(21)).gradients(IMAGES)
    for name, grad in trainer_of(convolutional(opset)).gradients(IMAGES).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["mse", "l1", "bce", "cross_entropy"])
def test_initializers_that_are_inputs_too(loss, tmp_path):
    """IR version 3 wanted every initializer to be an input."""
    model = convolutional(9)
    model.ir_version = 3
    for tensor in reversed(model.graph.initializer):
        model.graph.input.insert(
            0, onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    onnx.checker.check_model(model)
    target = {"target": np.abs(normal(4, 3, seed=4)).clip(0, 1)}
    batch = IMAGES if loss == "cross_entropy" else {"x": IMAGES["x"], **target}
    trainer = check_trains(model, batch, tmp_path, steps=12, loss=loss, lr=0.05)
    assert trainer.input_names == ["x"]
    saved = onnx.load(tmp_path / "trained.onnx")
    assert saved.graph.input == model.graph.input and saved.ir_version == 3


def test_frozen_weights_are_bound_and_not_trained():
    wide = LARGE // 4 // 4 + 1
    model = model_of(
        "(float[N,4] x) => (float[N,3] y) { h = MatMul(x, big) y = MatMul(h, small) }",
        {"big": normal(4, wide, seed=1), "small": normal(wide, 3, seed=2) / 50},
    )
    trainer = trainer_of(model, trainable=["small"])
    graph = trainer.module._model(training=True).graph
    names = [value.name for value in graph.inputs]
    assert "big" not in graph.initializers and "big" in names
    assert f"big{BUFFER_SUFFIX}" not in names and f"small{BUFFER_SUFFIX}" in names
    before = trainer.state.parameters["big"].data
    trainer.step(BATCH)
    np.testing.assert_array_equal(trainer.state.parameters["big"].data, before)
    assert trainer.state.parameters["big"].grad is None


def test_large_whole_numbers_are_bound_too():
    table = np.arange(LARGE // 8 + 1)
    model = model_of(
        """(int64[N] x) => (float[N,3] y) { i = Gather(table, x) y = Gather(w, i) }""",
        {"table": table % 7, "w": normal(7, 3)},
    )
    trainer = trainer_of(model)
    assert [d.name for d in trainer.decisions] == ["w"]
    batch = {"x": np.array([1, 8000, 3]), "labels": np.array([0, 1, 2])}
    losses = [float(trainer.step(batch)) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_tied_weights_get_both_gradients(tmp_path):
    model = model_of(
        """(float[N,3] x) => (float[N,3] y) {
            h = MatMul(x, w) t = Tanh(h) y = MatMul(t, w)
        }""",
        {"w": normal(3, 3)},
    )
    batch = {"x": BATCH["x"][:, :3], "labels": BATCH["labels"]}
    trainer = check_trains(model, batch, tmp_path, steps=20)
    w = torch.tensor(normal(3, 3)).requires_grad_()
    scores = torch.tanh(torch.tensor(batch["x"]) @ w) @ w
    torch.nn.functional.cross_entropy(scores, torch.tensor(batch["labels"])).backward()
    torch.testing.assert_close(
        trainer_of(model).gradients(batch)["w"], w.grad, rtol=1e-4, atol=1e-6
    )
    assert len(trainer.parameters) == 1


def test_a_weight_that_no_gradient_reaches_is_left_out():
    model = model_of(
        """(float[N,4] x) => (float[N,3] y) {
            whole = Floor(steps) h = Add(x, whole) y = MatMul(h, w)
        }""",
        {"steps": normal(4, seed=1), "w": normal(4, 3)},
    )
    trainer = trainer_of(model)
    assert list(trainer.parameters) == ["w"]
    (left,) = (d for d in trainer.decisions if not d.trained)
    assert (left.name, left.reason) == ("steps", "no differentiable path to the loss")
    trainer.step(BATCH)


def test_a_scalar_parameter_trains_when_named(tmp_path):
    model = model_of(
        "(float[N,4] x) => (float[N,3] y) { m = MatMul(x, w) y = Mul(m, s) }",
        {"w": normal(4, 3), "s": np.float32(0.3)},
    )
    trainer = trainer_of(model, trainable=["s"])
    assert trainer.gradients(BATCH)["s"].shape == ()
    check_trains(model, BATCH, tmp_path, steps=20, trainable=["w", "s"])


def test_the_rest_of_onnx_can_still_be_imported_afterwards():
    """Its reference evaluator, which torch's exporter needs, looks at all registered operators."""
    code = "from onnxtrain.graph import schemas; schemas.ensure_registered(); import onnx.reference"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
