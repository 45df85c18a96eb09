"""Nodes that stand in an order in which they cannot run."""

import numpy as np
import onnxruntime
import pytest

from graph.text import proto
from onnxtrain.errors import ModelError
from onnxtrain.graph.loading.load import load_model
from onnxtrain.runtime.session import InferenceSession

MIXED = "(float[2] x) => (float[2] y) { y = Neg(h)  h = Abs(k)  k = Neg(x) }"


def test_what_onnxruntime_sorts_is_sorted():
    feeds = {"x": np.asarray([1, -2], np.float32)}
    (want,) = onnxruntime.InferenceSession(proto(MIXED).SerializeToString()).run(None, feeds)
    (found,) = InferenceSession(proto(MIXED)).run(None, feeds)
    assert np.array_equal(found, want)


def test_nodes_in_order_stay_where_they_are():
    of = load_model(proto("(float[2] x) => (float[2] y) { b = Neg(x)  a = Abs(x)  y = Add(a, b) }"))
    assert [node.op_type for node in of.graph] == ["Neg", "Abs", "Add"]


def test_a_circle_is_refused():
    with pytest.raises(ModelError, match=r"nodes wait for each other: '\w' -> '\w' -> '\w'"):
        load_model(proto("(float[2] x) => (float[2] y) { y = Add(x, h)  h = Neg(y) }"))


def test_what_a_body_reads_comes_before_its_node():
    text = """(float[2] x, bool c) => (float[2] y) {
        y = If<then_branch = t () => (float[2] a) { a = Neg(h) },
               else_branch = e () => (float[2] b) { b = Identity(h) }>(c)
        h = Abs(x)
    }"""
    feeds = {"x": np.asarray([1, -2], np.float32), "c": np.asarray(True)}
    (found,) = InferenceSession(proto(text)).run(None, feeds)
    assert found.tolist() == [-1.0, -2.0]
