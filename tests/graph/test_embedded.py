"""Graphs carried by TritonOp nodes take their places."""

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain.errors import GraphError
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession

INNER = """<ir_version: 9, opset_import: ["": 17]> g
(float[n] a, float[n] b) => (float[n] c, float[n] d)
<float two = {2.0}> {
  s = Add(a, b)
  c = Mul(s, two)
  d = Exp(s)
}"""


def carrying(inner: bytes, inputs: tuple[str, ...] = ("x", "y")) -> onnx.ModelProto:
    text = '<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]> main '
    model = onnx.parser.parse_model(
        text + "(float[3] x, float[3] y) => (float[3] p, float[3] q) { p = Neg(x) q = Neg(y) }"
    )
    del model.graph.node[:]
    for k, outputs in enumerate((["u", "v"], ["p", "q"])):
        node = onnx.helper.make_node(
            "TritonOp",
            inputs if k == 0 else ["u", "v"],
            outputs,
            name=f"fused_{k}",
            domain="com.microsoft",
            onnx_key=k,
            onnx_string=inner,
        )
        model.graph.node.append(node)
    return model


@pytest.mark.filterwarnings("ignore")
def test_carried_graphs_run() -> None:
    model = carrying(onnx.parser.parse_model(INNER).SerializeToString())
    x, y = np.float32([1, -2, 3]) / 8, np.float32([0.5, 1, -1]) / 8
    p, q = InferenceSession(model).run(None, {"x": x, "y": y})
    s = 2 * (x + y) + np.exp(x + y)
    np.testing.assert_allclose(p, 2 * s, rtol=1e-6)
    np.testing.assert_allclose(q, np.exp(s), rtol=1e-6)


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(GraphError, match="onnx_string of node 'fused_0' is not an ONNX model"):
        prepare(load_model(carrying(b"certainly not")))


def test_a_graph_that_does_not_fit_is_refused() -> None:
    inner = onnx.parser.parse_model(INNER).SerializeToString()
    with pytest.raises(GraphError, match="has 2 inputs and 2 outputs, the node 1"):
        prepare(load_model(carrying(inner, inputs=("x",))))
