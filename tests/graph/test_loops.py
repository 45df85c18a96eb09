"""Loops as files have them."""

import numpy as np
import onnx_ir as ir
import onnxruntime

from graph.text import model, proto
from onnxtrain.graph.loops import settle_loops
from onnxtrain.graph.prepare import prepare
from onnxtrain.graph.verify import verify
from onnxtrain.runtime.session import InferenceSession

CARRIED = """(float[2] x, int64 n) => (float[2] y, float[2] z) <float[2] w = {2.0, 3.0}> {
  yes = Constant <value = bool {1}> ()
  y, again, rows = Loop (n, yes, x, w) <body = b (int64 i, bool go, float[2] s, float[2] u)
      => (bool on, float[2] t, float[2] u, float[2] row) {
    on = Identity(go)
    t = Mul(s, u)
    row = Add(t, u)
  }>
  sums = ReduceSum <keepdims = 0> (rows, zero)
  z = Add(sums, again)
}"""
CARRIED = CARRIED.replace("{2.0, 3.0}>", "{2.0, 3.0}, int64[1] zero = {0}>")
VECTOR = """(float[2] x, int64 n) => (float[r,c] y) {
  yes = Constant <value = bool {1}> ()
  last, y = Loop (n, yes, x) <body = b (int64[1] i, bool go, float[2] s)
      => (bool on, float[2] t, float[k] row) {
    on = Identity(go)
    t = Neg(s)
    whole = Cast <to = 1> (i)
    row = Concat <axis = 0> (whole, s)
  }>
}"""
FEEDS = {"x": np.asarray([1, -1], np.float32), "n": np.asarray(3)}


def loop_of(of: ir.Model) -> ir.Node:
    (node,) = (node for node in of.graph.all_nodes() if node.op_type == "Loop")
    return node


def check_against_onnxruntime(text: str) -> None:
    session = onnxruntime.InferenceSession(proto(text).SerializeToString())
    found = InferenceSession(proto(text)).run(None, FEEDS)
    for want, have in zip(session.run(None, FEEDS), found, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6)
        assert want.shape == np.shape(have)


def test_what_is_handed_on_unchanged_is_read_from_outside():
    of = model(CARRIED)
    settle_loops(of)
    verify(of)
    loop = loop_of(of)
    body = loop.attributes["body"].as_graph()
    assert [value.name for value in loop.inputs] == ["n", "yes", "x"]
    assert [value.name for value in loop.outputs] == ["y", "rows"]
    assert [value.name for value in body.inputs] == ["i", "go", "s"]
    assert {node.op_type for node, _ in of.graph.initializers["w"].uses()} == {"Mul", "Add"}


def test_results_stay_the_same():
    check_against_onnxruntime(CARRIED)


def test_an_unchanged_value_that_the_model_returns_stays():
    of = model(
        """(float[2] x, int64 n) => (float[2] y) {
          yes = Constant <value = bool {1}> ()
          y = Loop (n, yes, x) <body = b (int64 i, bool go, float[2] s)
              => (bool on, float[2] s) { on = Identity(go) }>
        }"""
    )
    settle_loops(of)
    assert len(loop_of(of).inputs) == 3


IDLE = """(float[2] x, int64 n) => (float[2] y) {
  yes = Constant <value = bool {1}> ()
  same = Loop (n, yes, x) <body = b (int64 i, bool go, float[2] s)
      => (bool on, float[2] s) { on = Identity(go) }>
  y = Neg(same)
}"""


def test_a_loop_that_hands_everything_on_is_none():
    of = model(IDLE)
    settle_loops(of)
    verify(of)
    assert [node.op_type for node in of.graph.all_nodes()] == ["Constant", "Neg"]
    check_against_onnxruntime(IDLE)


def test_a_body_that_wants_vectors_of_one_gets_them():
    check_against_onnxruntime(VECTOR)
    body = loop_of(prepare(model(VECTOR))).attributes["body"].as_graph()
    assert len(body.inputs[0].shape) == 0 and len(body.outputs[2].shape) == 1


ASSIGNED = """(float[2] x, float[2] w, int64 n) => (float[2] y, float[r,2] rows)
    <int64[1] front = {0}, int64[2] both = {0, 1}, float[1] nothing = {0.0}, float[1] one = {1.0}> {
  yes = Constant <value = bool {1}> ()
  y, kept, rows = Loop (n, yes, x, w) <body = b (int64 i, bool go, float[2] s, float[2] u)
      => (bool on, float[2] t, float[2] v, float[2] row) {
    on = Identity(go)
    product = Mul(s, u)
    high = Unsqueeze(product, front)
    same = Add(high, nothing)
    t = Squeeze(same, front)
    wide = Unsqueeze(u, front)
    again = Add(wide, nothing)
    v = Squeeze(again, front)
    tall = Unsqueeze(t, both)
    more = Add(tall, one)
    row = Squeeze(more, both)
  }>
}"""


def test_what_is_assigned_by_adding_zero_is_the_value_itself():
    of = model(ASSIGNED)
    settle_loops(of)
    verify(of)
    loop = loop_of(of)
    body = loop.attributes["body"].as_graph()
    assert [value.name for value in loop.inputs] == ["n", "yes", "x"]
    assert [node.op_type for node in body] == ["Identity", "Mul", "Unsqueeze", "Add", "Squeeze"]
    assert body.outputs[1].name == "product"


def test_results_of_assignments_stay_the_same():
    feeds = {**FEEDS, "w": np.asarray([2, 3], np.float32)}
    session = onnxruntime.InferenceSession(proto(ASSIGNED).SerializeToString())
    found = InferenceSession(proto(ASSIGNED)).run(None, feeds)
    for want, have in zip(session.run(None, feeds), found, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6)


def test_a_zero_that_adds_an_axis_stays():
    of = model(ASSIGNED.replace("float[1] nothing = {0.0}", "float[1,1,1] nothing = {0.0}"))
    settle_loops(of)
    body = loop_of(of).attributes["body"].as_graph()
    assert sum(node.op_type == "Add" for node in body) == 3
