"""Declared shapes that are wrong."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from graph.text import model, proto, values
from onnxtrain.errors import OnnxTrainError
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession


def shape(of, name: str) -> list[int | str | None] | None:
    found = values(of)[name].shape
    return None if found is None else [d if isinstance(d, int) else d.value for d in found]


def test_a_wrong_rank_of_an_output_is_corrected():
    of = prepare(model("(float[2,3] x) => (float[6] y) { y = Neg(x) }"))
    assert shape(of, "y") == [2, 3]


def test_a_wrong_size_of_an_inner_value_is_corrected():
    of = proto("(float[2,3] x) => (float[2,3] y) <float[2,4] h> { h = Neg(x)  y = Abs(h) }")
    assert shape(prepare(model_from(of)), "h") == [2, 3]


def test_a_weight_has_the_shape_of_what_it_holds():
    of = proto(
        "(float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
    )
    of.graph.value_info.append(
        onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2, 3])
    )
    found = prepare(model_from(of))
    assert shape(found, "w") == [3, 2]
    assert shape(found, "y") == ["N", 2]


def test_a_size_that_is_free_in_the_input_is_free_in_the_output():
    of = prepare(model("(float[N,3] x) => (float[1,3] y) { y = Neg(x) }"))
    assert shape(of, "y") == ["N", 3]
    found = InferenceSession(proto("(float[N,3] x) => (float[1,3] y) { y = Neg(x) }"))
    assert found.run(None, {"x": np.ones([4, 3], np.float32)})[0].shape == (4, 3)


def test_what_only_the_file_knows_is_believed():
    of = model("(float[2] x) => (float[7] y) { y = test.Mystery(x) }", test=1)
    assert shape(prepare(of), "y") == [7]
    dynamic = "(float[N,K] x, int64[r] s) => (float[2,5] y) { y = Reshape(x, s) }"
    assert shape(prepare(model(dynamic)), "y") == [2, 5]


def test_a_scalar_that_is_declared_a_vector_is_a_scalar():
    text = "(float[2] x) => (float[1] y) { y = ReduceSum <keepdims = 0> (x) }"
    assert shape(prepare(model(text)), "y") == []


def test_a_scalar_that_nothing_confirms_is_not_believed():
    text = "(float[N,K] x) => (float y) { y = Squeeze(x) }"
    assert shape(model(text), "y") == [] and shape(prepare(model(text)), "y") is None
    other = model("(float[2] x) => (float y) { y = test.Odd(x) }", test=1)
    assert shape(prepare(other), "y") == []


def test_sizes_below_zero_are_unknown():
    of = proto("(float[N,2] x) => (float[N,2] y) { y = Neg(x) }")
    of.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    of.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    found = InferenceSession(of).run(None, {"x": np.ones([3, 2], np.float32)})
    assert found[0].shape == (3, 2)


@pytest.mark.parametrize("word", ["None", "?", "-1", "Unknown", " "])
def test_a_word_for_any_size_does_not_make_sizes_equal(word):
    of = proto("(float[N,3] x, float[N,3] y) => (float[M,3] z) { a = Neg(x)  z = Add(a, y) }")
    for value in of.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = word
    session = InferenceSession(of)
    assert session.get_inputs()[0].shape == [None, 3]
    one, five = np.ones([1, 3], np.float32), np.ones([5, 3], np.float32)
    assert session.run(None, {"x": one, "y": five})[0].shape == (5, 3)


def test_sizes_that_were_reckoned_with_below_zero_are_unknown():
    """A quantiser takes -1 for a number, and half of it for 0."""
    text = """(float[N,1,H,W] x) => (float[N,1,1,1] y) {
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        q = test.Odd(p)
        y = GlobalAveragePool(p)
    }"""
    of = proto(text)
    of.opset_import.add(domain="test", version=1)
    for dim in list(of.graph.input[0].type.tensor_type.shape.dim)[2:]:
        dim.dim_value = -1
    for name in "pq":
        told = onnx.helper.make_tensor_value_info(name, 1, [None, 1, 0, 0])
        of.graph.value_info.append(told)
    made = prepare(ir.from_proto(of))
    _, channels, *sides = shape(made, "p") or []
    assert channels == 1 and not any(isinstance(side, int) for side in sides)
    assert (shape(made, "q") or [])[2:] == [0, 0], "nothing else is known of it"


GROWING = """(float[1] x, int64 n) => (float[] y) {
  yes = Constant <value = bool {1}> ()
  zero = Constant <value = int64[1] {0}> ()
  last = Loop (n, yes, x) <body = b (int64 i, bool go, float[1] s) => (bool on, float[1] t) {
    on = Identity(go)
    t = Concat <axis = 0> (s, s)
  }>
  y = ReduceSum <keepdims = 0> (last, zero)
}"""


def test_what_a_loop_makes_longer_has_no_fixed_length():
    of = prepare(model(GROWING))
    assert shape(of, "last") == [None] and shape(of, "y") == []
    feeds = {"x": np.ones(1, np.float32), "n": np.asarray(3)}
    assert InferenceSession(proto(GROWING)).run(None, feeds)[0] == 8


RANKS = """(float[1] x, int64 n) => (float[1,1] y) {
  yes = Constant <value = bool {1}> ()
  zero = Constant <value = int64[1] {0}> ()
  y = Loop (n, yes, x) <body = b (int64 i, bool go, float[1] s) => (bool on, float[1] t) {
    on = Identity(go)
    t = Unsqueeze(s, zero)
  }>
}"""


def test_what_a_loop_gives_more_dimensions_has_no_known_rank():
    (loop,) = (node for node in prepare(model(RANKS)).graph if node.op_type == "Loop")
    assert loop.attributes["body"].as_graph().inputs[2].shape is None
    feeds = {"x": np.ones(1, np.float32), "n": np.asarray(1)}
    (want,) = onnxruntime.InferenceSession(proto(RANKS).SerializeToString()).run(None, feeds)
    (found,) = InferenceSession(proto(RANKS)).run(None, feeds)
    assert found.shape == want.shape == (1, 1)


KEPT = """(float[N,4] x, int64 n) => (float[N,4] y) <float[4,4] w> {
  yes = Constant <value = bool {1}> ()
  last = Loop (n, yes, x) <body = b (int64 i, bool go, float s) => (bool on, float t) {
    on = Identity(go)
    t = MatMul(s, w)
  }>
  y = Neg(last)
}"""


def test_what_a_loop_carries_keeps_a_shape_that_is_nowhere_declared():
    of = proto(KEPT.replace("<float[4,4] w>", f"<float[4,4] w = {{{','.join(['1.0'] * 16)}}}>"))
    (loop,) = (node for node in of.graph.node if node.op_type == "Loop")
    for value in (*loop.attribute[0].g.input[2:], *loop.attribute[0].g.output[1:]):
        value.type.tensor_type.ClearField("shape")
    assert shape(prepare(model_from(of)), "last") == ["N", 4]


def model_from(of: onnx.ModelProto):
    return ir.from_proto(of)


def test_what_a_loop_in_a_branch_in_a_loop_carries_keeps_its_shape():
    text = """(int64 m, bool c, float[3] x) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool go, float[3] v) => (bool go_on, float[3] u) {
        go_on = Identity(go)
        u = If (c) <
          then_branch = t () => (float[3] a) {
            a = Loop (m, , v) <body = d (int64 j, bool on, float[3] p) => (bool on_on, float[3] q) {
              on_on = Identity(on)  q = Sin(p) }> },
          else_branch = e () => (float[3] k) { k = Neg(v) }> }> }"""
    of = prepare(model(text))
    names = {v.name: v.shape for node in of.graph.all_nodes() for v in node.outputs}
    assert all(list(names[name]) == [3] for name in ("y", "u", "a", "q", "k"))


def test_a_loop_keeps_its_shapes_beside_one_that_has_none():
    body = "body = b (int64 i, bool go, float[] s) => (bool on, float[] t)"
    text = f"""(float[2,3] x, int64[r] k, int64 n) => (float[2,3] y, float[a] z) {{
      y = Loop (n, , x) <{body} {{ on = Identity(go)  t = Neg(s) }}>
      z = Loop (n, , x) <{body} {{ on = Identity(go)  t = Reshape(s, k) }}> }}"""
    of = prepare(model(text))
    assert shape(of, "y") == [2, 3]
    inside = [node.attributes["body"].as_graph().inputs[2].shape for node in of.graph]
    assert inside == [ir.Shape([2, 3]), None]


def test_what_a_loop_lets_grow_keeps_no_initial_size():
    text = """(float[3,4] x, int64 n, int64[2] k) => (float[a,4] y) {
      y = Loop (n, , x) <body = b (int64 i, bool go, float[q,4] s) => (bool on, float[r,4] t) {
        on = Identity(go)  part = Reshape(s, k)  t = Concat<axis = 0>(s, part) }> }"""
    of = prepare(model(text))
    (loop,) = of.graph
    inside = loop.attributes["body"].as_graph().inputs[2].shape
    assert [str(dim) for dim in inside] == ["q", "4"]
    assert [str(dim) for dim in of.graph.outputs[0].shape] == ["a", "4"]


def test_a_scan_along_an_axis_that_is_not_there_is_refused_in_words():
    text = """(float[N,2] x) => (float[N] y) {
      v = ReduceSum<keepdims = 0, axes = [1]>(x)
      y = Scan (v) <num_scan_inputs = 1, scan_input_axes = [AXIS],
          body = b (float[] r) => (float[] s) { s = Neg(r) }> }"""
    x = np.ones([3, 2], np.float32)
    good = InferenceSession(proto(text.replace("AXIS", "-1"), 11))
    assert good.run(None, {"x": x})[0].tolist() == [-2, -2, -2]
    with pytest.raises(OnnxTrainError, match=r"node 'Scan_y' .* axis 1 .*\[-1,0\]"):
        InferenceSession(proto(text.replace("AXIS", "1"), 11)).run(None, {"x": x})
