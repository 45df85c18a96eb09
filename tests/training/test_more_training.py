"""Whole runs with the losses beyond those of the reference."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from onnxtrain import Trainer, artifacts
from onnxtrain.errors import FeedError, OnnxTrainError, OptionError, ParameterError
from onnxtrain.onnxblock import loss
from onnxtrain.training.selection import Selection
from training.small import batch_of, load_module, load_optimizer, mlp, model_of, normal

TWO_HEADS = """(float[N,4] x) => (float[N,3] y, float[N,2] z) {
    h = Gemm(x, w1)
    a = Tanh(h)
    y = Gemm(a, w2)
    z = Gemm(a, w3)
}"""


def two_heads() -> onnx.ModelProto:
    shapes = {"w1": (4, 5), "w2": (5, 3), "w3": (5, 2)}
    return model_of(TWO_HEADS, {n: normal(*s, seed=i) for i, (n, s) in enumerate(shapes.items())})


def test_several_losses_on_several_outputs(tmp_path):
    artifacts.generate_artifacts(
        two_heads(),
        requires_grad=["w1", "w2", "w3"],
        loss=loss.WeightedSum([loss.CrossEntropyLoss(), loss.HuberLoss()], [1.0, 0.5]),
        optimizer=artifacts.OptimType.Adam,
        artifact_directory=tmp_path,
        additional_output_names=["y", "z"],
    )
    module = load_module(tmp_path)
    optimizer = load_optimizer(tmp_path, module)
    optimizer.set_learning_rate(0.05)
    assert module.input_names() == ["x", "y_target", "z_target"]
    assert module.output_names()[-2:] == ["y", "z"]
    batch = [normal(6, 4), np.arange(6) % 3, normal(6, 2, seed=3)]
    totals = []
    for _ in range(20):
        total, first, second, y, z = module(*batch)
        np.testing.assert_allclose(total, first + 0.5 * second, rtol=1e-6)
        assert y.shape == (6, 3) and z.shape == (6, 2)
        totals.append(float(total))
        optimizer.step()
        module.lazy_reset_grad()
    assert totals[-1] < 0.6 * totals[0]

    module.eval()
    expected = module(*batch)
    module.export_model_for_inferencing(tmp_path / "out.onnx", ["z", "y"])
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    assert [value.name for value in session.get_inputs()] == ["x"]
    z, y = session.run(None, {"x": batch[0]})
    np.testing.assert_allclose(y, expected[3], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(z, expected[4], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["huber", "smooth_l1", "mse", "l1"])
def test_regressions_by_name(name):
    trainer = Trainer(mlp(), loss=name, lr=0.05, device="cpu")
    batch = {"x": batch_of()["x"], "target": normal(6, 3, seed=8)}
    losses = [float(trainer.step(batch)) for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]


def test_ctc_learns_an_alignment():
    body = "(float[T,N,4] x) => (float[T,N,5] y) { y = MatMul(x, w) }"
    model = model_of(body, {"w": normal(4, 5, seed=1)})
    trainer = Trainer(model, loss=loss.CTCLoss(from_logits=True), lr=0.1, device="cpu")
    assert trainer.loss_input_names == ["targets", "input_lengths", "target_lengths"]
    batch = {
        "x": normal(8, 3, 4),
        "targets": np.array([[1, 2], [3, 0], [4, 4]]),
        "input_lengths": np.array([8, 6, 8]),
        "target_lengths": np.array([2, 1, 2]),
    }
    losses = [float(trainer.step(batch)) for _ in range(15)]
    assert losses[-1] < 0.8 * losses[0]


def test_info_nce_brings_pairs_together():
    body = "(float[N,4] x, float[N,4] z) => (float[N,3] a, float[N,3] b) {"
    body += " a = MatMul(x, w)\n b = MatMul(z, w) }"
    model = model_of(body, {"w": normal(4, 3, seed=1)})
    trainer = Trainer(model, loss=loss.InfoNCELoss(symmetric=True), lr=0.05, device="cpu")
    batch = {"x": normal(6, 4), "z": normal(6, 4) + 0.3 * normal(6, 4, seed=1)}
    losses = [float(trainer.step(batch)) for _ in range(15)]
    assert losses[-1] < 0.8 * losses[0]


def test_a_loss_that_is_not_reduced_cannot_be_trained(tmp_path):
    with pytest.raises(OnnxTrainError, match="scalar"):
        artifacts.generate_artifacts(
            mlp(),
            requires_grad=["fc1.weight"],
            loss=loss.MSELoss(reduction="none"),
            artifact_directory=tmp_path,
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", [0, 1, 2])
def test_batches_without_samples_add_nothing_to_a_step(place):
    batches = [batch_of(), batch_of(4)]
    with_empty = list(batches)
    with_empty.insert(place, {name: array[:0] for name, array in batch_of().items()})
    trainers = [Trainer(mlp(), loss="cross_entropy", device="cpu") for _ in range(2)]
    assert float(trainers[0].step(batches)) == float(trainers[1].step(with_empty))
    for name, tensor in trainers[0].parameters.items():
        assert tensor.equal(trainers[1].parameters[name])


def test_the_mean_loss_over_batches_of_a_model_in_float16_is_finite():
    trainer = Trainer(mlp(np.float16), loss="mse", optimizer="sgd", lr=0.0, device="cpu")
    batch = {"x": np.zeros((64, 4), np.float16), "target": np.full((64, 3), 60, np.float16)}
    loss = trainer.step(batch)
    assert loss.dtype == torch.float16 and 3000 < float(loss) < 4000  # times 64 is infinite
    assert trainer.step([batch, batch]).equal(loss)


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_the_last_layer_is_trained(count):
    with pytest.raises(ParameterError, match=f"not the last {count}"):
        Trainer(mlp(), loss="cross_entropy", device="cpu", trainable=Selection(last=count))


def test_mistakes_after_the_start_are_told():
    trainer = Trainer(mlp(), loss="cross_entropy", device="cpu")
    for rate in (-1.0, float("nan")):
        with pytest.raises(OptionError, match="lr must be a finite number of at least 0"):
            trainer.lr = rate
    with pytest.raises(FeedError, match=r"only one: \[batch\]"):
        trainer.evaluate(batch_of())
