"""The gradient of Gelu with its sums, joined."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain import InferenceSession
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.backward import join

FORMS = {
    "added": "p = MatMul(x, w) h = Add(p, b) g = Gelu<{kind}>(h)",
    "gemm": "r = Flatten<axis=2>(x) h = Gemm(r, w, b) g = Gelu<{kind}>(h)",
}


def _model(form: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20]>
        layer (float[2, 3, 4] x) => (float loss)
        {{ {form} loss = ReduceMean<keepdims=0>(g) }}
    """)
    random = np.random.default_rng(0)
    for name, shape in {"w": (4, 5), "b": (5,)}.items():
        value = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def _gradients(model: onnx.ModelProto, joined: bool) -> tuple[int, list[np.ndarray]]:
    graph = prepare(load_model(build_gradient_graph(model, ["w", "b"], ["loss"], loss="loss")))
    count = join(graph) if joined else 0
    session = InferenceSession(ir.to_proto(graph).SerializeToString())
    x = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    return count, session.run(["w_grad", "b_grad"], {"x": x})


@pytest.mark.parametrize("kind", ['approximate="none"', 'approximate="tanh"'])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_joined_and_nothing_changes(name: str, kind: str) -> None:
    model = _model(FORMS[name].format(kind=kind))
    count, found = _gradients(model, joined=True)
    _, expected = _gradients(model, joined=False)
    assert count == 1
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_sums_over_fewer_axes_are_left_alone() -> None:
    model = _model("p = MatMul(x, w) h = Add(p, c) g = Gelu(h)")
    model.graph.initializer[1].CopyFrom(
        onnx.numpy_helper.from_array(np.ones((3, 5), np.float32), "c")
    )
    graph = prepare(load_model(build_gradient_graph(model, ["w", "c"], ["loss"], loss="loss")))
    assert join(graph) == 0
