"""Group normalization joined with the activation behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from onnxtrain import Trainer
from onnxtrain.transforms import backward
from training.small import model_of, normal

SILU = "s = Sigmoid(n) a = Mul(n, s)"
ACTIVATIONS = {
    "silu": SILU,
    "quick": "m = Mul(n, alpha) s = Sigmoid(m) a = Mul(n, s)",
    "relu": "a = Relu(n)",
}


def model(act: str, groups: int = 2) -> onnx.ModelProto:
    body = f"""(float[N,3,5,5] x) => (float[N,2] y) {{
        c = Conv<pads=[1,1,1,1]>(x, w)
        n = GroupNormalization<num_groups={groups}>(c, scale, shift)
        {act}
        p = GlobalAveragePool(a) f = Flatten(p) y = MatMul(f, head)
    }}"""
    weights: dict[str, Any] = {
        "w": normal(4, 3, 3, 3, seed=1),
        "scale": 1 + normal(4, seed=2),
        "shift": normal(4, seed=3),
        "head": normal(4, 2, seed=4),
    }
    if "alpha" in act:
        weights["alpha"] = np.array(1.75, np.float32)
    return model_of(body, weights, opset=21, ir_version=10)


def trained(
    act: str, steps: Sequence[Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[float], dict[str, torch.Tensor]]:
    monkeypatch.setattr(backward, "STEPS", tuple(steps))
    trainer = Trainer(
        model(act), loss="mse", optimizer="sgd", lr=0.1, device="cpu",
        trainable=["w", "scale", "shift", "head"],
    )  # fmt: skip
    batch = {"x": normal(4, 3, 5, 5, seed=5), "target": normal(4, 2, seed=6)}
    losses = [float(trainer.step(batch)) for _ in range(3)]
    ops = [s.kernel.op for s in trainer.module.runner(training=True).plan.block.steps]
    return ops, losses, {p.name: p.tensor for p in trainer.state.parameters.in_order()}


def in_torch(kind: str) -> list[float]:
    given = {t.name: onnx.numpy_helper.to_array(t) for t in model("a = Relu(n)").graph.initializer}
    values = {name: torch.tensor(array, requires_grad=True) for name, array in given.items()}
    x, target = torch.tensor(normal(4, 3, 5, 5, seed=5)), torch.tensor(normal(4, 2, seed=6))
    optimizer, losses = torch.optim.SGD(values.values(), lr=0.1), []
    for _ in range(3):
        c = torch.nn.functional.conv2d(x, values["w"], padding=1)
        n = torch.nn.functional.group_norm(c, 2, values["scale"], values["shift"])
        a = n * torch.sigmoid(n * (1.75 if kind == "quick" else 1))
        a = torch.relu(n) if kind == "relu" else a
        loss = torch.nn.functional.mse_loss(a.mean((2, 3)) @ values["head"], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_both_directions_are_joined(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    every = (*backward.STEPS, *backward.ON_GPU)
    ops, losses, state = trained(ACTIVATIONS[kind], every, monkeypatch)
    plain, expected, other = trained(ACTIVATIONS[kind], (), monkeypatch)
    between = {"QuickGelu", "QuickGeluGrad", "Relu", "ReluGrad"}
    assert not between & {*ops} and len(between & {*plain}) == 2
    assert (ops.count("GroupNormalized"), ops.count("GroupNormalizedGrad")) == (1, 1)
    assert losses == pytest.approx(expected, rel=3e-6)
    assert losses == pytest.approx(in_torch(kind), rel=3e-6)
    assert losses[0] - losses[-1] > 1e-2 * losses[0]
    for name, value in state.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "act",
    [
        f"{SILU.replace('a =', 'b =')} a = Add(b, n)",  # what is normalized is read elsewhere
        "a = Sigmoid(n)",
        "r = Relu(n) q = Relu(n) t = Tanh(q) a = Mul(r, t)",
    ],
)
def test_others_are_left_alone(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ops, losses, _ = trained(act, (backward.join_groups,), monkeypatch)
    plain, expected, _ = trained(act, (), monkeypatch)
    assert ops == plain and losses == expected
