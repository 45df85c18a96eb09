"""What an exporter computed from a parameter that is read itself, too, is made of it again."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graph.text import model, proto
from onnxtrain.graph.loading.load import load_source
from onnxtrain.graph.torch_export.folded import tie

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
TIED = """(float[N, 2] x) => (float[N, 2] y)
<float[2, 2] w = {1, 2, 3, 4}, float[2, 2] turned = {1, 3, 2, 4}, float[4] flat = {1, 2, 3, 4}> {
    h = MatMul(x, w)
    k = MatMul(h, turned)
    s = ReduceSum(flat)
    y = Add(k, s)
}"""


def told(text: str = TIED, kind: str = "PARAMETER", sources: str = "['val_0', 'w']") -> ir.Model:
    """A model whose constants tell what they are and were made of."""
    found = model(text)
    found.graph.initializers["w"].metadata_props[KIND] = kind
    for name in ("turned", "flat"):
        found.graph.initializers[name].metadata_props[FOLDED] = sources
    return found


def test_other_forms_of_a_parameter_are_made_of_it():
    tied = told()
    assert tie(tied)
    made = {v.name: node for node in tied.graph for v in node.outputs}
    assert made["turned"].op_type == "Transpose" and made["flat"].op_type == "Reshape"
    assert made["turned"].inputs[0] is made["flat"].inputs[0] is tied.graph.initializers["w"]
    assert not {"turned", "flat"} & tied.graph.initializers.keys()
    onnx.checker.check_model(ir.to_proto(tied), full_check=True)
    assert not tie(tied)


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "BUFFER"},
        {"sources": "['val_0']"},
        {"sources": "no list"},
        {"sources": "1"},
        {"text": TIED.replace("{1, 3, 2, 4}", "{1, 3, 2, 5}").replace("{1, 2, 3, 4}>", "{2}>")},
        {"text": TIED.replace("MatMul(x, w)", "Identity(x)")},
        {"text": TIED.replace("1, 2, 3, 4", "1, 1, 1, 1").replace("1, 3, 2, 4", "1, 1, 1, 1")},
    ],
    ids=["buffer", "others", "text", "number", "values", "unread", "equal"],
)
def test_what_is_no_other_form_of_a_parameter_stays(other):
    text = other.get("text", TIED).replace("float[4] flat = {2}", "float[1] flat = {2}")
    assert not tie(told(**{**other, "text": text}))


UNTOLD = """(float[N, 2] x) => (float[N, 3] y)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2, 3] "onnx::MatMul_12" = {1, 3, 5, 2, 4, 6}> {
    h = Gemm<transB = 1>(x, w)
    k = MatMul(x, "onnx::MatMul_12")
    y = Add(h, k)
}"""


def test_what_the_older_exporter_transposed_is_made_of_the_parameter():
    tied = model(UNTOLD)
    assert tie(tied)
    (made,) = [node for node in tied.graph if node.op_type == "Transpose"]
    assert made.inputs[0] is tied.graph.initializers["w"]
    assert list(tied.graph.initializers) == ["w"]
    onnx.checker.check_model(ir.to_proto(tied), full_check=True)


SQUARE = UNTOLD.replace("[2, 3]", "[2, 2]").replace("[3, 2]", "[2, 2]").replace("[N, 3]", "[N, 2]")


@pytest.mark.parametrize(
    "text",
    [
        UNTOLD.replace("onnx::MatMul_12", "v"),
        UNTOLD.replace("2, 4, 6}", "2, 4, 7}"),
        UNTOLD.replace("Gemm<transB = 1>(x, w)", 'MatMul(x, "onnx::MatMul_12")'),
        SQUARE.replace("1, 2, 3, 4, 5, 6", "1, 0, 0, 1").replace("1, 3, 5, 2, 4, 6", "1, 0, 0, 1"),
        UNTOLD.replace("1, 2, 3, 4, 5, 6", "1, 1, 1, 1, 1, 1").replace(
            "1, 3, 5, 2, 4, 6", "1, 1, 1, 1, 1, 1"
        ),
    ],
    ids=["named", "values", "unread", "symmetric", "equal"],
)
def test_numbers_that_do_not_tell_tie_nothing(text):
    assert not tie(model(text))


def test_the_file_to_write_back_has_the_parameter_once():
    original = proto(TIED)
    for value in (
        onnx.helper.make_tensor_value_info("w", 1, [2, 2]),
        onnx.helper.make_tensor_value_info("turned", 1, [2, 2]),
    ):
        key, text = (KIND, "PARAMETER") if value.name == "w" else (FOLDED, "['w']")
        value.metadata_props.add(key=key, value=text)
        original.graph.value_info.append(value)
    source = load_source(original)
    assert {t.name for t in source.proto.graph.initializer} == {"w", "flat"}
    w = onnx.numpy_helper.to_array(next(t for t in source.proto.graph.initializer if t.name == "w"))
    np.testing.assert_array_equal(w, [[1, 2], [3, 4]])
