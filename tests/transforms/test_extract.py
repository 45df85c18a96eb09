"""Cutting a model down to some outputs with values for its parameters."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain import InferenceSession
from onnxtrain.errors import GraphError
from onnxtrain.transforms.extract import extract
from training.small import model_of, normal

X = normal(2, 4, seed=5)
VALUES = {"w": normal(4, 3), "v": normal(3, 2, seed=1)}


def evaluation() -> ir.Model:
    """Parameters are inputs, as in an evaluation model."""
    return ir.from_proto(
        model_of(
            """(float[N,4] x, int64[N] labels, float[4,3] w, float[3,2] v) => (float loss) {
                two = Constant<value=float {2}>()
                h = MatMul(x, w)
                d = Mul(h, two)
                y = MatMul(d, v)
                loss = SoftmaxCrossEntropyLoss(y, labels)
            }"""
        )
    )


def test_outputs_can_be_any_values_of_the_graph():
    made = extract(evaluation(), ["y", "h"], VALUES)
    assert [v.name for v in made.graph.inputs] == ["x"]
    assert list(made.graph.initializers) == ["w", "v"]
    onnx.checker.check_model(ir.to_proto(made), full_check=True)
    y, h = InferenceSession(ir.to_proto(made)).run(None, {"x": X})
    np.testing.assert_allclose(h, X @ VALUES["w"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, 2 * h @ VALUES["v"], rtol=1e-5, atol=1e-6)


def test_what_is_not_needed_is_left_out():
    made = extract(evaluation(), ["h"], VALUES)
    assert [n.op_type for n in made.graph] == ["MatMul"]
    assert list(made.graph.initializers) == ["w"]


def test_domains_that_only_the_loss_needed_are_left_out():
    text = """(float[N,4] x, float[4,3] w) => (float loss) {
        h = MatMul(x, w)
        g = com.microsoft.Gelu(h)
        loss = ReduceMean<keepdims=0>(g)
    }"""
    made = ir.from_proto(model_of(text, imports=', "com.microsoft": 1'))
    kept = extract(made.clone(), ["g"], VALUES)
    assert kept.graph.opset_imports == {"": 17, "com.microsoft": 1}
    assert extract(made, ["h"], VALUES).graph.opset_imports == {"": 17}


def test_nodes_that_are_kept_stay_as_they_were():
    made = extract(evaluation(), ["d"], VALUES)
    assert [n.op_type for n in made.graph] == ["Constant", "MatMul", "Mul"]


def test_dynamic_dimensions_are_kept():
    made = extract(evaluation(), ["y"], VALUES)
    assert [str(d) for d in made.graph.inputs[0].shape] == ["N", "4"]
    assert [str(d) for d in made.graph.outputs[0].shape] == ["N", "2"]


def test_inputs_without_a_value_stay_inputs():
    made = extract(evaluation(), ["y"], {"w": VALUES["w"]})
    assert [v.name for v in made.graph.inputs] == ["x", "v"]


def test_an_unknown_output_is_named():
    with pytest.raises(
        GraphError, match="no value 'z' to return\n  outputs  loss\n  inner values  y"
    ):
        extract(evaluation(), ["z"], VALUES)
