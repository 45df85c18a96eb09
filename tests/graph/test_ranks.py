"""Ranks where sizes are not known."""

import pytest

from graph.text import model, values
from onnxtrain.graph.prepare import prepare


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(float[N] x, int64[3] s) => (float y) { y = Reshape(x, s) }", 3),
        ("(float[N] x, int64[3] s) => (float y) { y = Expand(x, s) }", 3),
        ("(float[N,2,2,2] x, int64[3] s) => (float y) { y = Expand(x, s) }", 4),
        ("(float[N] x, int64[2] s) => (float y) { y = ConstantOfShape(s) }", 2),
        ("(float[N,K] x, int64[4] s) => (float y) { y = Pad(x, s) }", 2),
        ("(float[N,K] x, int64[2] s) => (float y) { y = Tile(x, s) }", 2),
        ("(float[N] x, int64[r] s) => (float y) { y = Reshape(x, s) }", None),
        (
            "(float x, int64[r] s) => (float y) { z = Reshape(x, s) y = ReduceL1<keepdims=0>(z) }",
            0,
        ),
        ("(float[N] x, int64[r] s) => (float y) { z = Reshape(x, s) y = ReduceMax(z) }", None),
    ],
)
def test_the_rank_follows_from_the_length_of_a_shape_or_from_the_first_input(text, expected):
    of = model(text)
    of.graph.outputs[0].shape = None
    found = values(prepare(of))["y"].shape
    assert (None if found is None else len(found)) == expected
