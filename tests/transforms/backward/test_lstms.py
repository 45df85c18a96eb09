"""LSTM layers that are joined with their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch

from onnxtrain import Trainer
from onnxtrain.errors import NodeError
from onnxtrain.transforms import recipe
from onnxtrain.transforms.backward import join
from training.small import model_of, normal

T, B, D, H = 5, 3, 4, 6
EVERY = "s = ReduceMean<axes=[0,1], keepdims=0>(y) scores = MatMul(s, head)"
STATES = "u = Add(h, c) s = ReduceMean<axes=[0], keepdims=0>(u) scores = MatMul(s, head)"
ALL = f"u = Add(h, c) v = Add(y, u) {EVERY.replace('(y)', '(v)')}"


def model(
    behind: str, way: str, given: str = "b", kind: type = np.float32, **options: Any
) -> onnx.ModelProto:
    ways = 2 if way == "bidirectional" else 1
    form = "".join(f", {name}={value}" for name, value in options.items())
    body = f"""({"double" if kind is np.float64 else "float"}[{T},{B},{D}] x) =>
        ({"double" if kind is np.float64 else "float"}[{B},2] scores) {{
        y, h, c = LSTM<hidden_size={H}, direction="{way}"{form}>(x, w, r, {given})
        {behind}
    }}"""
    weights: dict[str, Any] = {
        "w": normal(ways, 4 * H, D, seed=1),
        "r": normal(ways, 4 * H, H, seed=2),
        "b": normal(ways, 8 * H, seed=3),
        "h0": normal(ways, B, H, seed=7),
        "c0": normal(ways, B, H, seed=8),
        "p": normal(ways, 3 * H, seed=9),
        "head": normal(H, 2, seed=4),
    }
    return model_of(body, {name: value.astype(kind) for name, value in weights.items()})


def trained(
    proto: onnx.ModelProto, *without: str
) -> tuple[set[str], list[float], dict[str, torch.Tensor]]:
    kind = proto.graph.initializer[0].data_type
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "join", lambda model, **_: join(model, without=without))
        one = Trainer(proto, loss="mse", optimizer="sgd", lr=0.1, device="cpu")
        batch = {"x": normal(T, B, D, seed=5), "target": normal(B, 2, seed=6)}
        batch = {n: a.astype(onnx.helper.tensor_dtype_to_np_dtype(kind)) for n, a in batch.items()}
        losses = [float(one.step(batch)) for _ in range(3)]
        ops = {step.kernel.op for step in one.module.runner(training=True).plan.block.steps}
    return ops, losses, dict(one.parameters)


@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("behind", [EVERY, STATES, ALL], ids=["steps", "states", "both"])
@pytest.mark.parametrize("given", ["b", "", "b, , h0, c0"], ids=["biases", "weights", "all"])
def test_both_train_alike(way: str, behind: str, given: str) -> None:
    proto = model(behind, way, given)
    joined, plain = trained(proto), trained(proto, "join_lstms")
    assert {"LSTMLayer", "LSTMLayerGrad"} <= joined[0] and "LSTMLayer" not in plain[0]
    np.testing.assert_allclose(joined[1], plain[1], rtol=1e-5)
    assert joined[1][2] < joined[1][0]
    for name, value in plain[2].items():
        torch.testing.assert_close(joined[2][name], value, rtol=1e-4, atol=1e-6)


def test_settings_that_are_written_out_are_those_of_a_plain_layer() -> None:
    proto = model(ALL, "forward", input_forget=0, activations='["Sigmoid", "Tanh", "Tanh"]')
    assert "LSTMLayerGrad" in trained(proto)[0]


@pytest.mark.parametrize(
    "proto",
    [
        model(EVERY, "forward", "b, , h0, c0, p"),
        model(EVERY, "forward", kind=np.float64),
        model(EVERY, "forward", clip=1.0),
        model(EVERY, "forward", activations='["Tanh", "Tanh", "Tanh"]'),
    ],
    ids=["peepholes", "double", "clip", "activations"],
)
def test_others_stay(proto: onnx.ModelProto) -> None:
    assert not {"LSTMLayer", "LSTMLayerGrad"} & trained(proto)[0]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("clip=1.0", "clip is not supported"),
        ('activations=["Tanh", "Tanh", "Tanh"]', "activations are"),
        ("input_forget=1", "input_forget is not supported"),
    ],
)
def test_options_of_a_layer_with_a_gradient_are_not_lost(option: str, said: str) -> None:
    body = f"""(float[{T},{B},{D}] x) => (float[{B},2] scores) {{
        y, h, c, cells, gates = com.microsoft.LSTMTraining<hidden_size={H}, {option}>(x, w, r)
        {EVERY}
    }}"""
    weights = {
        "w": normal(1, 4 * H, D, seed=1), "r": normal(1, 4 * H, H, seed=2),
        "head": normal(H, 2, seed=4),
    }  # fmt: skip
    with pytest.raises(NodeError, match=said):
        trained(model_of(body, weights, imports=', "com.microsoft": 1'))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model(ALL, "bidirectional", "b, , h0, c0")
    fast = trained(proto)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    slow = trained(proto)
    assert "LSTMLayerGrad" in slow[0]
    np.testing.assert_allclose(fast[1], slow[1], rtol=1e-5)
    for name, value in slow[2].items():
        torch.testing.assert_close(fast[2][name], value, rtol=1e-4, atol=1e-6)
