"""Sums joined with the layer or RMS normalization behind them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain import InferenceSession
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.backward.skip import join_skips

KINDS = {
    "LayerNormalization": {"v": (4, 4), "scale": (4,), "shift": (4,), "w": (4, 4)},
    "SimplifiedLayerNormalization": {"v": (4, 4), "scale": (4,), "w": (4, 4)},
}
"""Shapes of weights by the normalization that there is."""
PLAIN = "LayerNormalization"


def _model(
    body: str = "s = Add(x, a)", norm: str = "epsilon=0.01", kind: str = PLAIN
) -> onnx.ModelProto:
    vectors = ", ".join(name for name in KINDS[kind] if name.startswith("s"))
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        blocks (float[3, 4] x) => (float loss)
        {{ a = MatMul(x, v) {body} n = {kind}<{norm}>(s, {vectors})
           f = MatMul(n, w) o = Add(s, f) t = Tanh(o) loss = ReduceMean<keepdims=0>(t) }}
    """)
    random = np.random.default_rng(0)
    for name, shape in KINDS[kind].items():
        value = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def _gradients(model: onnx.ModelProto, joined: bool) -> tuple[int, list[np.ndarray]]:
    names = [tensor.name for tensor in model.graph.initializer]
    graph = prepare(load_model(build_gradient_graph(model, names, ["loss"], loss="loss")))
    count = join_skips(graph) if joined else 0
    session = InferenceSession(ir.to_proto(graph).SerializeToString())
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    return count, session.run(["loss", *(f"{name}_grad" for name in names)], {"x": x})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["epsilon=0.01", "axis=1", "axis=-1"])
def test_a_sum_is_joined_and_nothing_changes(norm: str, kind: str) -> None:
    count, found = _gradients(_model(norm=norm, kind=kind), joined=True)
    _, expected = _gradients(_model(norm=norm, kind=kind), joined=False)
    assert count == 1
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "norm"),
    [
        ("r = ReduceMean<axes=[0]>(x) s = Add(r, a)", "axis=-1"),
        ("s = Mul(x, a)", "axis=-1"),
        ("s = Add(x, a)", "axis=-1, stash_type=11"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_other_sums_are_left_alone(body: str, norm: str, kind: str) -> None:
    graph = prepare(load_model(_model(body, norm, kind)))
    assert join_skips(graph) == 0
