"""A model without weights tells where its numbers are and what helps."""

from __future__ import annotations

import pytest

from graph.text import proto
from onnxtrain.errors import NoKernelError, ParameterError
from onnxtrain.graph.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.transforms.parameters import decide

WHOLE = (
    "(uint8[2,2] x) => (float[2,2] y) <int8[2,2] w = {1, 2, 3, 4}> "
    "{ p = MatMulInteger(x, w) y = Cast<to=1>(p) }"
)
LINEAR = (
    "(float[2,2] x) => (float[2,1] y) "
    "{ y = ai.onnx.ml.LinearRegressor<coefficients=[1.0, 2.0]>(x) }"
)
TREE = (
    "(float[2,1] x) => (float[2,1] y) { y = ai.onnx.ml.TreeEnsembleRegressor<n_targets=1, "
    "nodes_treeids=[0], nodes_nodeids=[0], nodes_featureids=[0], nodes_values=[0.0], "
    'nodes_modes=["LEAF"], nodes_truenodeids=[0], nodes_falsenodeids=[0], target_treeids=[0], '
    "target_nodeids=[0], target_ids=[0], target_weights=[1.0]>(x) }"
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (WHOLE, r"'w' \(int8\): stored as whole numbers; quantise the model in the QDQ"),
        (LINEAR, "ai.onnx.ml::LinearRegressor: its numbers are attributes"),
        (TREE, "ai.onnx.ml::TreeEnsembleRegressor: decision trees have no gradient"),
    ],
    ids=["whole numbers", "attributes", "trees"],
)
def test_where_the_numbers_are(text, told):
    model = proto(text)
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    with pytest.raises(ParameterError, match=told):
        decide(prepare(load_model(model)))


def test_a_file_for_one_processor_tells_how_to_write_another():
    model = proto(
        "(float[1,8,2,2] x) => (float[1,8,2,2] y) { y = nchwc.ReorderOutput(x) }", nchwc=1
    )
    model.graph.node[0].domain = model.opset_import[1].domain = "com.microsoft.nchwc"
    with pytest.raises(NoKernelError, match="graph_optimization_level=ORT_ENABLE_EXTENDED"):
        InferenceSession(model)
