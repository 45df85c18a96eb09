"""A model without weights tells where its numbers are and what helps."""

from __future__ import annotations

import pytest

from graph.text import proto
from onnxtrain.errors import NoGradientError, NoKernelError, ParameterError
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.transforms.weights.parameters import decide

WHOLE = (
    "(uint8[2,2] x) => (float[2,2] y) <int8[2,2] w = {1, 2, 3, 4}> "
    "{ p = MatMulInteger(x, w) y = Cast<to=1>(p) }"
)
SCALED = (
    "(float[2,2] x) => (float[2,2] y) "
    "{ y = ai.onnx.ml.Scaler<offset=[1.0, 2.0], scale=[1.0, 2.0]>(x) }"
)

STRIPPED = "(float[2,2] x, float[2,3] w, float[3] b) => (float[2,3] y) { y = Gemm(x, w, b) }"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (WHOLE, r"'w' \(int8\): stored as whole numbers; quantise the model in the QDQ"),
        (SCALED, "ai.onnx.ml::Scaler: its numbers are settings of the node"),
        (STRIPPED, r"'w' and 1 more: an input, which has no value in the file; .* initializers"),
    ],
    ids=["whole numbers", "settings", "inputs"],
)
def test_where_the_numbers_are(text, told):
    model = proto(text)
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    with pytest.raises(ParameterError, match=told):
        decide(prepare(load_model(model)))


@pytest.mark.parametrize(
    ("op", "cure"),
    [
        ("DecoderMaskedMultiHeadAttention", "before it was optimised for generating text"),
        ("QMoE", "before it was quantised"),
        ("Tokenizer", "feed the words or their ids"),
    ],
)
def test_operators_that_make_no_sense_in_training_tell_what_helps(op, cure):
    model = proto(f"(float[2] x) => (float[2] y) {{ y = com.microsoft.{op}(x) }}", ms=1)
    model.opset_import[1].domain = "com.microsoft"
    with pytest.raises(NoKernelError, match=f"{op}(.|\n)*{cure}"):
        InferenceSession(model)


def for_one_processor():
    model = proto(
        "(float[1,8,2,2] x) => (float[1,8,2,2] y) { y = nchwc.ReorderOutput(x) }", nchwc=1
    )
    model.graph.node[0].domain = model.opset_import[1].domain = "com.microsoft.nchwc"
    return model


def test_a_file_for_one_processor_tells_how_to_write_another():
    with pytest.raises(NoKernelError, match="graph_optimization_level=ORT_ENABLE_EXTENDED"):
        InferenceSession(for_one_processor())


def test_its_gradient_tells_the_same():
    with pytest.raises(NoGradientError, match="graph_optimization_level=ORT_ENABLE_EXTENDED"):
        build_gradient_graph(for_one_processor(), "x", "y")
