"""What is joined costs the same at each place: nothing looks through the whole graph for every one.

Removing nodes looks through all outputs of a graph, a new name through all values.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain.graph import edit
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.backward import join
from onnxtrain.transforms.training_graph import build_models, parameters_to_inputs

SHAPES = {
    "w": (4, 4), "u": (4, 4), "v": (4, 4), "b": (4,), "scale": (4,), "shift": (4,),
    "wide": (4, 12), "wideb": (12,), "full": (3, 4), "mean": (4,), "var": (4,),
    "classes": (4, 1024),
}  # fmt: skip
NORM = "n{i} = BatchNormalization(m{i}, scale{i}, shift{i}, mean{i}, var{i}) "
LOSS = (
    "l{i}, p{i} = SoftmaxCrossEntropyLoss(m{i}, ids) e{i} = Expand(l{i}, one) "
    "x{j} = Mul(x{i}, e{i})"
)
BLOCKS = {
    "bias": "m{i} = Gemm(x{i}, w{i}, b{i}) x{j} = Gelu(m{i})",
    "residual": "n{i} = LayerNormalization(x{i}, scale{i}, shift{i}) m{i} = MatMul(n{i}, w{i}) "
    "a{i} = Add(m{i}, b{i}) x{j} = Add(x{i}, a{i})",
    "dropout": "m{i} = Gemm(x{i}, w{i}, b{i}) x{j} = Dropout(m{i}, half, on)",
    "normalized": "m{i} = MatMul(x{i}, w{i}) " + NORM + "x{j} = Relu(n{i})",
    "shortcut": "m{i} = MatMul(x{i}, w{i}) " + NORM + "a{i} = Add(n{i}, x{i}) x{j} = Relu(a{i})",
    "turned": "t{i} = Transpose<perm=[1, 0]>(w{i}) m{i} = MatMul(x{i}, t{i}) x{j} = Relu(m{i})",
    "branches": "a{i} = Gemm(x{i}, w{i}) c{i} = Gemm(x{i}, u{i}) d{i} = Gemm(x{i}, v{i}) "
    "e{i} = Mul(a{i}, c{i}) x{j} = Add(e{i}, d{i})",
    "packed": "m{i} = Gemm(x{i}, wide{i}, wideb{i}) "
    "q{i}, k{i}, r{i} = Split<axis=-1, num_outputs=3>(m{i}) e{i} = Mul(q{i}, k{i}) "
    "x{j} = Mul(e{i}, r{i})",
    "chain": "m{i} = Mul(x{i}, full{i}) s{i} = Sigmoid(m{i}) x{j} = MatMul(s{i}, w{i})",
    "tied": "g{i} = Gather(w{i}, ids) m{i} = MatMul(x{i}, w{i}) x{j} = Add(m{i}, g{i})",
    "losses": "m{i} = MatMul(x{i}, w{i}) " + LOSS,
    "projections": "m{i} = MatMul(x{i}, classes{i}) " + LOSS,
}


def _training_model(block: str, count: int) -> ir.Model:
    body = " ".join(BLOCKS[block].format(i=i, j=i + 1) for i in range(count))
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20]>
        blocks (float[3, 4] x0, int64[3] ids) => (float loss)
        <float half = {{0.5}}, bool on = {{1}}, int64[2] one = {{1, 1}}>
        {{ {body} loss = ReduceMean<keepdims=0>(x{count}) }}
    """)
    random = np.random.default_rng(0)
    read = sorted({name for node in model.graph.node for name in node.input})
    weights = [name for name in read if name.rstrip("0123456789") in SHAPES]
    for name in weights:
        numbers = random.normal(size=SHAPES[name.rstrip("0123456789")]).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    prepared = prepare(load_model(model))
    trained = [name for name in weights if not name.startswith(("mean", "var"))]
    parameters_to_inputs(prepared, trained)
    return build_models(prepared, trainable=trained, outputs=["loss"]).training


def _searches(model: ir.Model, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """How many places are joined, how often nodes are removed and names are collected."""
    calls = {"remove": 0, "names": 0}
    remove, value_names = ir.Graph.remove, edit.value_names

    def counted_remove(*given, **options):
        calls["remove"] += 1
        return remove(*given, **options)

    def counted_names(graph):
        calls["names"] += 1
        return value_names(graph)

    with monkeypatch.context() as patch:
        patch.setattr(ir.Graph, "remove", counted_remove)
        patch.setattr(edit, "value_names", counted_names)
        joined = join(model, on_gpu=True, compiled=True, without=["hand_over_gradients"])
    return joined, calls["remove"], calls["names"]


@pytest.mark.parametrize("block", BLOCKS)
def test_more_places_need_no_more_searches(block: str, monkeypatch) -> None:
    few, *searched = _searches(_training_model(block, 3), monkeypatch)
    many, *again = _searches(_training_model(block, 7), monkeypatch)
    assert many >= few + 4
    assert again == searched
