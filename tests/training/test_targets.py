"""Targets of one sample are refused where a loss would broadcast them."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain import Trainer, artifacts
from onnxtrain.errors import FeedError
from training.small import batch_of, load_module, mlp, model_of, normal, write_artifacts

X = batch_of()["x"]
TARGET = {"x": X, "target": np.abs(normal(6, 3, seed=8)).clip(0, 1)}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["mse", "l1", "huber", "smooth_l1", "bce"])
def test_one_target_for_many_predictions_is_refused(name, precision):
    trainer = Trainer(mlp(), loss=name, precision=precision, device="cpu")
    one = {**TARGET, "target": TARGET["target"][:1]}
    told = r"'target' has shape \[1, 3\], with 1 as its 'N', but 'x' has shape \[6, 4\]"
    for call in (trainer.step, trainer.loss, trainer.gradients, lambda b: trainer.step([b, b])):
        with pytest.raises(FeedError, match=told):
            call(one)
    trainer.step(TARGET)
    trainer.step({"x": TARGET["x"][:1], "target": TARGET["target"][:1]})


def test_inputs_of_the_model_may_be_broadcast():
    """Only what a loss compares must have one value for each sample."""
    model = model_of(
        """(float[N,4] x, float[N,4] scale) => (float[N,3] y) {
            h = Tanh(x)
            a = Mul(h, scale)
            y = MatMul(a, w)
        }""",
        {"w": normal(4, 3)},
    )
    trainer = Trainer(model, loss="mse", device="cpu")
    wide = trainer.loss({**TARGET, "scale": np.ones((6, 4), np.float32)})
    assert trainer.loss({**TARGET, "scale": np.ones((1, 4), np.float32)}) == wide


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_target_for_many_predictions_of_a_module_is_refused(tmp_path, precision):
    write_artifacts(tmp_path / "mse", loss=artifacts.LossType.MSELoss)
    module = load_module(tmp_path / "mse", precision=precision)
    module(X, TARGET["target"])
    for mode in (True, False):
        module.train(mode)
        with pytest.raises(FeedError, match=r"'target' has shape \[1, 3\], with 1 as its 'N'"):
            module(X, TARGET["target"][:1])
