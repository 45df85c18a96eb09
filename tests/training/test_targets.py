"""Targets of one sample are refused where a loss would broadcast them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxtrain import Trainer, artifacts, onnxblock
from onnxtrain.errors import FeedError
from training.small import batch_of, load_module, mlp, model_of, normal, write_artifacts

X = batch_of()["x"]
TARGET = {"x": X, "target": np.abs(normal(6, 3, seed=8)).clip(0, 1)}


def unnamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose free sizes have no names."""
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.Clear()
    return model


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["mse", "l1", "huber", "smooth_l1", "bce", "kl_div"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_one_target_for_many_predictions_is_refused(name, precision, named):
    model = mlp() if named else unnamed(mlp())
    trainer = Trainer(model, loss=name, precision=precision, device="cpu")
    one = {**TARGET, "target": TARGET["target"][:1]}
    size = "N" if named else "x_0"
    told = rf"'target' has shape \[1, 3\], with 1 as its '{size}', but 'x' has shape \[6, 4\]"
    for call in (trainer.step, trainer.loss, trainer.gradients, lambda b: trainer.step([b, b])):
        with pytest.raises(FeedError, match=told):
            call(one)
    trainer.step(TARGET)
    trainer.step({"x": TARGET["x"][:1], "target": TARGET["target"][:1]})


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_inputs_of_the_model_may_be_broadcast(named):
    """Only what a loss compares must have one value for each sample."""
    model = model_of(
        """(float[N,4] x, float[N,4] scale) => (float[N,3] y) {
            h = Tanh(x)
            a = Mul(h, scale)
            y = MatMul(a, w)
        }""",
        {"w": normal(4, 3)},
    )
    trainer = Trainer(model if named else unnamed(model), loss="mse", device="cpu")
    wide = trainer.loss({**TARGET, "scale": np.ones((6, 4), np.float32)})
    assert trainer.loss({**TARGET, "scale": np.ones((1, 4), np.float32)}) == wide


LOSSES = artifacts.LossType.MSELoss, artifacts.LossType.KLDivLoss


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_one_target_for_many_predictions_of_a_module_is_refused(tmp_path, precision, loss, named):
    model = mlp() if named else unnamed(mlp())
    before = model.SerializeToString()
    write_artifacts(tmp_path / "some", model, loss=loss)
    assert model.SerializeToString() == before
    module = load_module(tmp_path / "some", precision=precision)
    module(X, TARGET["target"])
    size = "N" if named else "x_0"
    for mode in (True, False):
        module.train(mode)
        with pytest.raises(
            FeedError, match=rf"'target' has shape \[1, 3\], with 1 as its '{size}'"
        ):
            module(X, TARGET["target"][:1])


def test_logarithms_of_targets_are_compared_too():
    loss = onnxblock.loss.KLDivLoss(log_target=True)
    trainer = Trainer(unnamed(mlp()), loss=loss, device="cpu")
    with pytest.raises(FeedError, match=r"'target' has shape \[1, 3\], with 1 as its 'x_0'"):
        trainer.step({**TARGET, "target": TARGET["target"][:1]})
