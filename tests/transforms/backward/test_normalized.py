"""Batch normalization joined with the Relu behind it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from onnxtrain import Trainer
from onnxtrain.transforms import backward

TEXT = """
<ir_version: 10, opset_import: ["" : 17]>
images (float[n, 3, 6, 6] x) => (float[n, 2] y)
{
    c = Conv<pads=[1, 1, 1, 1]>(x, w)
    b = BatchNormalization(c, scale, shift, mean, var)
    r = Relu(b)
    s = Conv<pads=[1, 1, 1, 1]>(r, v)
    t = BatchNormalization(s, scale2, shift2, mean2, var2)
    a = Add(t, r)
    o = Relu(a)
    p = GlobalAveragePool(o)
    f = Flatten(p)
    y = MatMul(f, head)
}
"""
SHAPES = {"w": (4, 3, 3, 3), "v": (4, 4, 3, 3), "head": (4, 2)}
VECTORS = {"scale": 1.0, "shift": 0.1, "mean": 0.0, "var": 1.0}


def _model(text: str) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(text)
    values = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
    for name, value in VECTORS.items():
        values |= {name: np.full(4, value), f"{name}2": np.full(4, value)}
    for name, value in values.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    return model


def _trained(
    steps: tuple, monkeypatch, text: str = TEXT
) -> tuple[list[str], list[float], dict[str, torch.Tensor]]:
    monkeypatch.setattr(backward, "STEPS", steps)
    trainer = Trainer(_model(text), loss="cross_entropy", lr=0.01, device="cpu")
    random = torch.Generator().manual_seed(0)
    x = torch.randn((8, 3, 6, 6), generator=random)
    batch = {"x": x, "labels": (x.mean((1, 2, 3)) > 0).long()}
    losses = [float(trainer.step(batch)) for _ in range(4)]
    ops = [s.kernel.op for s in trainer.module.runner(training=True).plan.block.steps]
    state = {p.name: p.tensor for p in trainer.state.parameters.in_order()}
    return ops, losses, state


def test_norms_and_the_relu_behind_them_are_joined(monkeypatch) -> None:
    ops, losses, state = _trained((*backward.STEPS, *backward.ON_GPU), monkeypatch)
    plain, expected, other = _trained((), monkeypatch)
    assert (ops.count("BatchNormRelu"), ops.count("BatchNormReluGrad")) == (1, 1)
    assert (ops.count("BatchNormAddRelu"), ops.count("BatchNormalizationGrad")) == (1, 1)
    assert not {"BatchNormInternal", "Relu", "Add"} & set(ops)
    assert not {"BatchNormRelu", "BatchNormAddRelu"} & set(plain)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for name, value in state.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5)


def test_only_a_relu_that_alone_reads_the_norm_is_joined(monkeypatch) -> None:
    ops, *_ = _trained((backward.join_normalized,), monkeypatch)
    assert (ops.count("BatchNormRelu"), ops.count("BatchNormReluGrad")) == (1, 1)
    assert (ops.count("BatchNormInternal"), ops.count("Relu")) == (1, 1)


@pytest.mark.parametrize(
    ("second", "count"),
    [("o = Relu(a)", 1), ("o = Sigmoid(a)", 0), ("q = Relu(a) o = Add(q, a)", 0)],
)
def test_sums_that_others_read_are_left_alone(second: str, count: int, monkeypatch) -> None:
    text = TEXT.replace("o = Relu(a)", second)
    ops, *_ = _trained((backward.join_shortcuts,), monkeypatch, text)
    assert ops.count("BatchNormAddRelu") == count
