"""Recurrent layers that are trained run once a step, not once more for their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxtrain import Trainer
from onnxtrain.transforms import backward
from training.small import model_of, normal

T, B, D, H = 5, 3, 4, 6
GATES = {"LSTM": 4, "GRU": 3}


def model(kind: str, options: str, directions: int, behind: str) -> onnx.ModelProto:
    outputs = "y, h, c" if kind == "LSTM" else "y, h"
    body = f"""(float[{T},{B},{D}] x) => (float[{B},2] scores) {{
        {outputs} = {kind}<hidden_size={H}{options}>(x, w, r, b)
        {behind}
    }}"""
    rows = GATES[kind] * H
    weights: dict[str, Any] = {
        "w": normal(directions, rows, D, seed=1),
        "r": normal(directions, rows, H, seed=2),
        "b": normal(directions, 2 * rows, seed=3),
        "head": normal(H, 2, seed=4),
        "axes": np.array([0]),
    }
    return model_of(body, weights)


def trained(proto: onnx.ModelProto, without: tuple[str, ...] = ()) -> tuple[list[str], list[float]]:
    steps = tuple(s for s in backward.STEPS if s.__name__ not in without)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backward, "STEPS", steps)
        patch.setattr(backward, "ON_CPU", ())
        trainer = Trainer(
            proto,
            loss="mse",
            optimizer="sgd",
            lr=0.1,
            device="cpu",
            trainable=["w", "r", "b", "head"],
        )
        batch = {"x": normal(T, B, D, seed=5), "target": normal(B, 2, seed=6)}
        losses = [float(trainer.step(batch)) for _ in range(3)]
        ops = [s.kernel.op for s in trainer.module.runner(training=True).plan.block.steps]
    return ops, losses


LAST = "l = ReduceSum<keepdims=0>(h, axes) scores = MatMul(l, head)"
EVERY = "s = ReduceMean<axes=[0,1], keepdims=0>(y) scores = MatMul(s, head)"


@pytest.mark.parametrize("behind", [LAST, EVERY], ids=["last", "every"])
@pytest.mark.parametrize(
    ("kind", "options", "directions"),
    [
        ("LSTM", "", 1),
        ("LSTM", ", direction='bidirectional'", 2),
        ("LSTM", ", direction='reverse', activations=['Sigmoid', 'Tanh', 'Tanh']", 1),
        ("GRU", "", 1),
        ("GRU", ", linear_before_reset=1, direction='reverse'", 1),
    ],
)
def test_a_layer_runs_once(kind: str, options: str, directions: int, behind: str) -> None:
    proto = model(kind, options.replace("'", '"'), directions, behind)
    ops, losses = trained(proto)
    assert ops.count(f"{kind}Training") == 1 and kind not in ops
    apart, expected = trained(proto, ("join_recurrent",))
    assert apart.count(f"{kind}Training") == apart.count(kind) == 1
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def test_other_layers_stay() -> None:
    """One whose cells are bounded has no form that keeps its gates."""
    ops, _ = trained(model("LSTM", ", clip=0.5", 1, LAST))
    assert "LSTM" in ops and "LSTMTraining" not in ops
