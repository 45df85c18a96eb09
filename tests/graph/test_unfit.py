"""Shapes that can never meet: told when a model is read, before anything runs."""

import pytest

from graph.text import model
from onnxtrain.errors import GraphError
from onnxtrain.graph.prepare import prepare


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("y = Add(x, w)", r"\(ai.onnx::Add\): \[N,4,2,3\] and \[4,3\] do not broadcast"),
        ("y = Add(w, x)", r"\(ai.onnx::Add\): \[4,3\] and \[N,4,2,3\] do not broadcast"),
        ("t = Transpose<perm = [0, 3, 1, 2]>(x)  y = Max(t, x, w)", r"\[N,3,4,2\] and \[N,4,2,3\]"),
        ("c = Greater(x, x)  y = Where(c, w, x)", r"Where\): \[N,4,2,3\] and \[4,3\] and \[N,4"),
    ],
)
def test_inputs_that_never_broadcast_are_named(body: str, told: str) -> None:
    of = model(f"(float[N,4,2,3] x, float[4,3] w) => (float[A,B,C,D] y) {{ {body} }}")
    with pytest.raises(GraphError, match=told):
        prepare(of)


@pytest.mark.parametrize(
    ("inputs", "body"),
    [
        ("float[N,4,1] x, float[4,3] w", "y = Mul(x, w)"),
        ("float[N,4,M] x, float[2,1,3] w", "y = Mul(x, w)"),
        ("float x, float[2,1,3] w", "y = Mul(x, w)"),
        ("float[0,1,3] x, float[1,2,1] w", "y = Mul(x, w)"),
    ],
)
def test_those_that_may_are_left_alone(inputs: str, body: str) -> None:
    prepare(model(f"({inputs}) => (float[A,B,C] y) {{ {body} }}"))


def test_branches_that_may_never_be_taken_are_left_alone() -> None:
    of = """
    y = If(c) <
        then_branch = t () => (float[A,B] r) { r = Add(x, w) },
        else_branch = e () => (float[A,B] r) { r = Neg(x) }
    >"""
    prepare(model(f"(float[2,3] x, float[2,4] w, bool c) => (float[A,B] y) {{ {of} }}"))


def test_shapes_that_are_only_declared_do_not_count() -> None:
    of = "<float[2,4] r> { r = Reshape(x, s)  y = Add(r, w) }"
    prepare(model(f"(float[6] x, int64[2] s, float[2,3] w) => (float[A,B] y) {of}"))
