"""A projection joined with its loss and all gradients gives the same step."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain import InferenceSession
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.backward import join, projection

FORMS = {
    "matmul": "rows = Flatten<axis=2>(h) scores = MatMul(rows, w)",
    "matmul of a batch": "wide = MatMul(h, w) scores = Flatten<axis=2>(wide)",
    "transposed": "w_t = Transpose(w_) wide = MatMul(h, w_t) scores = Flatten<axis=2>(wide)",
    "gemm": "rows = Flatten<axis=2>(h) scores = Gemm(rows, w, bias)",
    "gemm transposed": "rows = Flatten<axis=2>(h) scores = Gemm<transB=1>(rows, w_, bias)",
    "bias added": "p = MatMul(h, w) wide = Add(p, bias) scores = Flatten<axis=2>(wide)",
}


@pytest.fixture(autouse=True)
def _from_few_classes(monkeypatch) -> None:
    monkeypatch.setattr(projection, "LEAST", 7)


SHAPES = {"v": (4, 4), "w": (4, 7), "w_": (7, 4), "bias": (7,)}


def _model(form: str, outputs: str = "") -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        words (float[2, 3, 4] x, int64[6] labels) => (float loss{outputs})
        {{ m = MatMul(x, v) h = Tanh(m) {form}
           loss, log_prob = SoftmaxCrossEntropyLoss<ignore_index=6>(scores, labels) }}
    """)
    random = np.random.default_rng(0)
    used = {name for node in model.graph.node for name in node.input}
    for name, shape in SHAPES.items():
        if name in used:
            value = random.normal(size=shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def _step(model: onnx.ModelProto, joined: bool) -> tuple[list[str], list[np.ndarray]]:
    names = [tensor.name for tensor in model.graph.initializer]
    graph = prepare(load_model(build_gradient_graph(model, names, ["loss"], loss="loss")))
    if joined:
        join(graph)
    session = InferenceSession(ir.to_proto(graph).SerializeToString())
    x = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    feeds = {"x": x, "labels": np.array([0, 6, 2, 5, 1, 3], np.int64)}
    wanted = ["loss", *(f"{name}_grad" for name in names)]
    return [node.op_type for node in graph.graph], session.run(wanted, feeds)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_joined_and_nothing_changes(name: str) -> None:
    model = _model(FORMS[name])
    nodes, found = _step(model, joined=True)
    _, expected = _step(model, joined=False)
    assert nodes.count("LinearCrossEntropyWithGrad") == 1
    assert nodes.count("CrossEntropyWithGrad") == 0
    assert nodes.count("MatMul") + nodes.count("Gemm") + nodes.count("FusedMatMul") == 2
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_scores_that_are_returned_stay() -> None:
    model = _model(FORMS["matmul"], ", float[6, 7] scores")
    nodes, _ = _step(model, joined=True)
    assert nodes.count("LinearCrossEntropyWithGrad") == 0


def test_scores_with_a_factor_stay() -> None:
    model = _model("rows = Flatten<axis=2>(h) scores = Gemm<alpha=0.5>(rows, w)")
    nodes, _ = _step(model, joined=True)
    assert nodes.count("LinearCrossEntropyWithGrad") == 0


def test_few_classes_stay(monkeypatch) -> None:
    monkeypatch.setattr(projection, "LEAST", 8)
    nodes, _ = _step(_model(FORMS["matmul"]), joined=True)
    assert nodes.count("CrossEntropyWithGrad") == 1
