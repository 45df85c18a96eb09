"""Constants in the bodies of nodes."""

import numpy as np
import onnx

from graph.text import model, proto
from onnxtrain.graph.bodies import body_tensors, proto_subgraphs, subgraphs
from onnxtrain.graph.lift import lift
from onnxtrain.graph.verify import verify

BRANCHES = """(bool c, float[2] x) => (float[2] y) <float[2] w = {5.0, 5.0}> {
  h = Add(x, w)
  y = If (c) <then_branch = t () => (float[2] a) <float[2] w = {1.0, 2.0}> { a = Mul(h, w) },
              else_branch = e () => (float[2] b) <float[2] w = {3.0, 4.0}> {
                k = Constant <value = float[2] {7.0, 8.0}> ()
                n = Constant <value = int64[1] {1}> ()
                hw = Mul(h, w)
                b = Add(hw, k)
              }>
}"""
NESTED = """(bool c, float[2] x) => (float[2] y) {
  y = If (c) <
    then_branch = t () => (float[2] a) {
      a = If (c) <then_branch = tt () => (float[2] p) <float[2] deep = {1.0, 2.0}> {
                    p = Add(x, deep)
                  },
                  else_branch = te () => (float[2] q) { q = Neg(x) }>
    },
    else_branch = e () => (float[2] b) <float[2] flat = {3.0, 4.0}> { b = Mul(x, flat) }>
}"""


def names(of) -> list[str]:
    return [one.name for one in body_tensors(of)]


def test_equal_names_in_two_bodies_and_outside_become_three():
    assert names(model(BRANCHES)) == ["w_2", "w_3", "k"]


def test_names_depend_on_the_file_alone():
    assert names(model(BRANCHES)) == names(model(BRANCHES))
    assert names(model(NESTED)) == ["deep", "flat"]


def test_bodies_are_called_alike_in_both_forms():
    for text in (BRANCHES, NESTED):
        found = {p: [node.op_type for node in body] for p, body in subgraphs(model(text).graph)}
        protos = proto_subgraphs(proto(text).graph)
        assert found == {p: [node.op_type for node in body.node] for p, body in protos}


def test_lifted_constants_belong_to_the_model_and_the_bodies_read_them():
    of = model(BRANCHES)
    lift(of, lambda one: True)
    verify(of)
    held = {name: value.const_value.numpy() for name, value in of.graph.initializers.items()}
    assert held.keys() == {"w", "w_2", "w_3", "k"}
    assert np.array_equal(held["w_3"], [3, 4]) and np.array_equal(held["k"], [7, 8])
    assert all(not body.initializers for _, body in subgraphs(of.graph))
    (rest,) = (n for _, b in subgraphs(of.graph) for n in b if n.op_type == "Constant")
    assert rest.outputs[0].name == "n"


def test_only_what_is_wanted_is_lifted():
    of = model(NESTED)
    lift(of, lambda one: one.name == "deep")
    assert list(of.graph.initializers) == ["deep"]
    assert [list(body.initializers) for _, body in subgraphs(of.graph)] == [[], [], [], ["flat"]]


def test_constants_written_as_numbers_count():
    of = model(
        """(bool c, float[2] x) => (float[2] y) {
          y = If (c) <then_branch = t () => (float[2] a) {
                        k = Constant <value_floats = [1.5, 2.5]> ()
                        s = Constant <value_float = 2.0> ()
                        ks = Mul(k, s)
                        a = Add(x, ks) },
                      else_branch = e () => (float[2] b) { b = Neg(x) }>
        }"""
    )
    found = {one.name: one.tensor.numpy() for one in body_tensors(of)}
    assert np.array_equal(found["k"], [1.5, 2.5]) and found["s"] == 2
    assert found["k"].dtype == np.float32 and found["s"].shape == ()


def test_a_model_without_bodies_has_none():
    onnx.checker.check_model(proto("(float[2] x) => (float[2] y) { y = Neg(x) }"))
    assert body_tensors(model("(float[2] x) => (float[2] y) { y = Neg(x) }")) == []
