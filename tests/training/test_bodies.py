"""Weights that stand in the bodies of If and Loop are trained and written back there."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from onnxtrain import Trainer
from onnxtrain.graph.bodies import proto_subgraphs
from training.small import model_of

BRANCHES = """(bool c, float[N,2] x) => (float[N,2] y) <float[2,2] u = {1.0, 0.5, -0.5, 1.0}> {
  h = MatMul(x, u)
  y = If (c) <
    then_branch = t () => (float[N,2] a) <float[2,2] w = {0.3, -0.2, 0.1, 0.4}> {
      a = MatMul(h, w)
    },
    else_branch = e () => (float[N,2] b) {
      w = Constant <value = float[2,2] {0.7, 0.1, 0.2, -0.6}> ()
      two = Constant <value = float {2.0}> ()
      hw = MatMul(h, w)
      b = Mul(hw, two)
    }>
}"""
LOOP = """(float[N,2] x) => (float[N,2] y) {
  yes = Constant <value = bool {1}> ()
  three = Constant <value = int64 {3}> ()
  y = Loop (three, yes, x) <body = b (int64 i, bool go, float[N,2] s)
      => (bool on, float[N,2] t) <float[2,2] w = {0.9, 0.1, -0.1, 0.9}> {
    on = Identity(go)
    m = MatMul(s, w)
    t = Tanh(m)
  }>
}"""
X = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)


def mean_square(outputs, batch) -> torch.Tensor:
    return outputs["y"].square().mean()


def trainer_of(text: str) -> Trainer:
    return Trainer(model_of(text), loss=mean_square, lr=0.05, device="cpu", seed=0)


def without_values(model: onnx.ModelProto) -> bytes:
    """A model whose tensors are all alike, to compare everything else."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for graph in (copied.graph, *(body for _, body in proto_subgraphs(copied.graph))):
        tensors = [*graph.initializer, *(a.t for n in graph.node for a in n.attribute)]
        for tensor in tensors:
            for field in ("raw_data", "float_data"):
                tensor.ClearField(field)
    return copied.SerializeToString(deterministic=True)


def test_weights_of_branches_have_names_of_their_own():
    trainer = trainer_of(BRANCHES)
    assert list(trainer.parameters) == ["u", "w", "w_2"]
    assert [d.name for d in trainer.decisions if not d.trained] == []


@pytest.mark.parametrize("condition", [True, False])
def test_the_branch_that_runs_gets_a_gradient(condition):
    grads = trainer_of(BRANCHES).gradients({"c": np.asarray(condition), "x": X})
    sizes = {name: float(grad.abs().sum()) for name, grad in grads.items()}
    ran, idle = ("w", "w_2") if condition else ("w_2", "w")
    assert sizes["u"] > 0 and sizes[ran] > 0 and sizes[idle] == 0


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        (BRANCHES, {"c": np.asarray(True), "x": X}),
        (BRANCHES, {"c": np.asarray(False), "x": X}),
        (LOOP, {"x": X}),
    ],
    ids=["then", "else", "loop"],
)
def test_the_file_keeps_its_structure_and_shows_the_change(tmp_path, text, feeds):
    trainer = trainer_of(text)
    losses = [float(trainer.step(feeds)) for _ in range(5)]
    assert losses[-1] < losses[0]
    path = tmp_path / "trained.onnx"
    trainer.save(path)
    saved, original = onnx.load(path), model_of(text)
    assert without_values(saved) == without_values(original)
    (found,) = onnxruntime.InferenceSession(path).run(None, feeds)
    (before,) = onnxruntime.InferenceSession(original.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(found, trainer.predict(feeds)["y"].numpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(found - before).max() > 1e-2


def test_gradients_of_a_loop_are_those_of_torch():
    grads = trainer_of(LOOP).gradients({"x": X})
    w = torch.tensor([[0.9, 0.1], [-0.1, 0.9]], requires_grad=True)
    state = torch.tensor(X)
    for _ in range(3):
        state = torch.tanh(state @ w)
    state.square().mean().backward()
    torch.testing.assert_close(grads["w"], w.grad)


FUNCTION = """(float[N,2] x) => (float[N,2] y) {
  h = own.Layer(x)
  y = own.Layer(h)
}
<domain: "own", opset_import: ["": 17]> Layer (a) => (b) {
  w = Constant <value = float[2,2] {0.9, 0.1, -0.1, 0.9}> ()
  m = MatMul(a, w)
  b = Tanh(m)
}"""


@pytest.mark.parametrize("as_proto", [True, False])
def test_a_weight_of_a_function_is_trained_for_all_of_its_calls(tmp_path, as_proto):
    original = model_of(FUNCTION, imports=', "own": 1')
    trainer = Trainer(
        original if as_proto else ir.from_proto(original), loss=mean_square, lr=0.05, device="cpu"
    )
    grads = trainer.gradients({"x": X})
    w = torch.tensor([[0.9, 0.1], [-0.1, 0.9]], requires_grad=True)
    torch.tanh(torch.tanh(torch.tensor(X) @ w) @ w).square().mean().backward()
    torch.testing.assert_close(grads["w"], w.grad)
    losses = [float(trainer.step({"x": X})) for _ in range(5)]
    assert losses[-1] < losses[0]
    path = tmp_path / "trained.onnx"
    trainer.save(path)
    assert [f.name for f in onnx.load(path).functions] == ["Layer"]
    (found,) = onnxruntime.InferenceSession(path).run(None, {"x": X})
    np.testing.assert_allclose(found, trainer.predict({"x": X})["y"].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("names", [["k"], ["q", "k"]])
def test_constants_of_a_body_are_trained_if_they_are_named(names: list[str], tmp_path) -> None:
    text = """(float[N,2] x, int64 n) => (float[N,2] y) {
      y = Loop (n, , x) <body = b (int64 i, bool go, float[N,2] s) => (bool on, float[N,2] t)
          <float k = {0.5}> {
        on = Identity(go)  q = Constant <value = float {0.25}> ()
        p = Mul(s, k)  t = Add(p, q) }> }"""
    chosen = Trainer(
        model_of(text), loss=mean_square, optimizer="sgd", lr=0.5, trainable=names, device="cpu"
    )
    leaves = {"k": torch.tensor(0.5), "q": torch.tensor(0.25)}
    used = [leaves[name].requires_grad_() for name in names]
    value = torch.tensor(X)
    for _ in range(3):
        value = value * leaves["k"] + leaves["q"]
    grads = torch.autograd.grad(value.square().mean(), used)
    feeds = {"x": X, "n": np.asarray(3)}
    chosen.step(feeds)
    for name, grad in zip(names, grads, strict=True):
        torch.testing.assert_close(chosen.parameters[name], leaves[name].detach() - 0.5 * grad)
    chosen.save(tmp_path / "trained.onnx")
    (found,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, feeds)
    np.testing.assert_allclose(found, chosen.predict(feeds)["y"].numpy(), rtol=1e-5)
