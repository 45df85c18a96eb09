"""Nodes that lack something, or have it in the wrong form."""

import re

import pytest

from graph.text import model
from onnxtrain.errors import GraphError
from onnxtrain.graph.prepare import prepare

BRANCHES = """
    y = If(c) <
        then_branch = t () => (float[2] r) { r = Neg(x) },
        else_branch = e () => (float[2] r, float[2] s) { r = Abs(x)  s = Neg(x) }
    >"""
BODY = """
    y = Loop(n, "", x) <
        body = b (int64 i, bool c, float[2] v) => (float[2] w) { w = Add(v, x) }
    >"""
WRONG = {
    'y = LeakyRelu<alpha = "big">(x)': "attribute 'alpha' is STRING, but it must be FLOAT",
    "y = Softmax<axis = [0]>(x)": "Softmax): attribute 'axis' is INTS, but it must be INT",
    "y = Concat(x, x)": "Concat) lacks its attribute 'axis'",
    'y = Add(x, "")': "Add) lacks its input 1, 'B'",
    "y = Add(x)": "Add) lacks its input 1, 'B'",
    BRANCHES: "If): 'then_branch' must have 2 outputs, it has 1",
    BODY: "Loop): 'body' must have 2 outputs, it has 1",
}


@pytest.mark.parametrize("body", WRONG)
def test_a_wrong_node_is_named(body: str) -> None:
    of = model(f"(float[2] x, bool c, int64 n) => (float[2] y) {{ {body} }}")
    with pytest.raises(GraphError, match=re.escape(WRONG[body])):
        prepare(of)


def test_whole_numbers_serve_for_others() -> None:
    prepare(model("(float[2] x) => (float[2] y) { y = LeakyRelu<alpha: int = 1>(x) }"))
