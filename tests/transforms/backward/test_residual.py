"""The gradient of a normalization beside a shortcut, joined with what the shortcut brings."""

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
from onnxtrain.transforms.backward.residual import join_residuals

KINDS = {"LayerNormalization": ["scale", "shift"], "SimplifiedLayerNormalization": ["scale"]}
BLOCK = """
    {y}_n = {norm}(x{i}, {vectors})
    {y}_f = MatMul({y}_n, w)
    {y} = Add(x{i}, {y}_f)
"""


def _model(blocks: int, more: str = "", norm: str = "LayerNormalization") -> onnx.ModelProto:
    given = {"norm": norm, "vectors": ", ".join(KINDS[norm])}
    body = "".join(BLOCK.format(i=i, y=f"x{i + 1}", **given) for i in range(blocks))
    text = f"""
        <ir_version: 10, opset_import: ["" : 17]>
        blocks (float[3, 4] x0) => (float loss)
        {{ {body} {more} loss = ReduceMean<keepdims=0>(x{blocks}) }}
    """
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(text)
    for name, shape in {**dict.fromkeys(KINDS[norm], (4,)), "w": (4, 4)}.items():
        value = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def _gradients(model: onnx.ModelProto, joined: bool) -> tuple[int, list[np.ndarray]]:
    names = ["x0", *(tensor.name for tensor in model.graph.initializer)]
    graph = prepare(load_model(build_gradient_graph(model, names, ["loss"], loss="loss")))
    count = join_residuals(graph) if joined else 0
    session = InferenceSession(ir.to_proto(graph).SerializeToString())
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    return count, session.run([f"{name}_grad" for name in names], {"x0": x})


@pytest.mark.parametrize("norm", KINDS)
def test_every_block_is_joined_and_nothing_changes(norm: str) -> None:
    count, found = _gradients(_model(3, norm=norm), joined=True)
    _, expected = _gradients(_model(3, norm=norm), joined=False)
    assert count == 3
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_a_gradient_that_is_asked_for_stays() -> None:
    model = _model(1)
    graph = prepare(load_model(build_gradient_graph(model, ["w"], ["loss"], loss="loss")))
    assert join(graph) == 0  # nobody asks for the gradient of x0


def test_a_sum_of_three_is_left_alone() -> None:
    more = "other = Exp(x0) extra = ReduceMean<keepdims=0>(other)"
    model = _model(1, more)
    model.graph.node[-1].input[0] = "both"
    model.graph.node.insert(len(model.graph.node) - 1,
                            onnx.helper.make_node("Add", ["x1", "other"], ["both"]))  # fmt: skip
    count, found = _gradients(model, joined=True)
    _, expected = _gradients(model, joined=False)
    assert count == 0
    np.testing.assert_array_equal(found[0], expected[0])
