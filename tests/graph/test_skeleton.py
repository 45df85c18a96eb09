import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graph.text import model
from onnxtrain.graph.inference.skeleton import SMALL, skeleton

LARGE = ", ".join(["1"] * SMALL)
MODELS = {
    "types": "(float[N,3] x, float[?,3] v) => (float[A,B] z) { y = Add(x, v)  z = Transpose(y) }",
    "constants": "(float[N] x) => (float[M] z) "
    f"<float[{SMALL}] w = {{{LARGE}}}, int64[1] s = {{-1}}> {{ y = Add(x, w)  z = Reshape(y, s) }}",
    "attributes": "(float[N,3] x) => (float[A,B] z) { z = Concat<axis = 1>(x, x) }",
    "missing": "(float[N,4,4] x) => (float[M] y) { y, = Dropout(x, , ) }",
    "bodies": """(bool c, float[2] x) => (float[K] y) {
        y = If(c) <then_branch = a () => (float[2] p) { p = Neg(x) },
                   else_branch = b () => (float[2] q) { q = Abs(x) }> }""",
}


def types(proto: onnx.ModelProto) -> dict[str, str]:
    found = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    return {info.name: str(info.type) for info in (*found.value_info, *found.output)}


@pytest.mark.parametrize("name", MODELS)
def test_inference_finds_what_it_finds_in_the_whole_model(name: str) -> None:
    of = model(MODELS[name])
    whole, made = types(ir.to_proto(of)), types(skeleton(of))
    weights = set(of.graph.initializers)
    assert {k: v for k, v in made.items() if k not in weights} == {
        k: v for k, v in whole.items() if k not in weights
    }


def test_only_small_constants_are_written_unless_all_are_wanted() -> None:
    of = model(MODELS["constants"])
    assert [tensor.name for tensor in skeleton(of).graph.initializer] == ["s"]
    assert [value.name for value in skeleton(of).graph.input] == ["x", "w"]
    assert [tensor.name for tensor in skeleton(of, small=10**9).graph.initializer] == ["w", "s"]
    assert list(of.graph.initializers) == ["w", "s"] and len(of.graph.inputs) == 1


def test_constants_keep_their_numbers_and_texts() -> None:
    of = model("(float[2] x) => (float[2] y) <float[2] w = {1.5, -2}> { y = Add(x, w) }")
    words = ir.tensor(["yes", "no"], name="t")
    of.graph.register_initializer(ir.Value(name="t", const_value=words))
    written = {t.name: onnx.numpy_helper.to_array(t) for t in skeleton(of).graph.initializer}
    np.testing.assert_array_equal(written["w"], np.array([1.5, -2], np.float32))
    assert written["t"].tolist() == ["yes", "no"]
