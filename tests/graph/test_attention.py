"""Shapes of Attention where only a run knows all sizes."""

import numpy as np
import pytest

from graph.text import model, proto, values
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession

PACKED = "q_num_heads=4, kv_num_heads=2"


@pytest.mark.parametrize(
    ("given", "options", "shapes"),
    [
        (
            ["B,4,S,8", "B,2,T,8", "B,2,T,6"],
            "",
            ["[B,4,S,6]", "[B,2,T,8]", "[B,2,T,6]", "[B,4,S,T]"],
        ),
        (
            ["B,S,32", "B,T,16", "B,T,12"],
            f"<{PACKED}>",
            ["[B,S,24]", "[B,2,T,8]", "[B,2,T,6]", "[B,4,S,T]"],
        ),
        (
            ["B,S,32", "B,T,16", "B,T,V"],
            f"<{PACKED}>",
            ["[B,S,None]", "[B,2,T,8]", "[B,2,T,None]", "[B,4,S,T]"],
        ),
        (
            ["B,S,32", "", "B,5,12"],
            f"<{PACKED}>",
            ["[B,S,24]", "[None,2,None,None]", "[B,2,None,6]", "[B,4,S,None]"],
        ),
        (
            ["", "B,2,T,8", "B,2,T,6"],
            "",
            ["None", "[B,2,T,8]", "[B,2,T,6]", "[None,None,None,T]"],
        ),
        (
            ["B,4,3,8", "B,2,5,8", "B,2,5,6", "", "B,2,P,8", "B,2,P,6"],
            "",
            ["[B,4,3,6]", "[B,2,None,8]", "[B,2,None,6]", "[B,4,3,None]"],
        ),
        (
            ["B,4,3,8", "B,2,5,8", "B,2,5,6", "", "B,2,7,8", "B,2,7,6"],
            "",
            ["[B,4,3,6]", "[B,2,12,8]", "[B,2,12,6]", "[B,4,3,12]"],
        ),
    ],
    ids=["heads", "packed", "packed values", "no keys", "no queries", "past", "known past"],
)
def test_unknown_sizes_stay_unknown(given: list[str], options: str, shapes: list[str]) -> None:
    names = [f"x{k}" for k in range(len(given))]
    inputs = ", ".join(f"float[{dims}] {name}" for name, dims in zip(names, given, strict=True))
    read = ", ".join(names[:3] + [""] * (len(names) > 3) + names[4:])
    text = f"""({inputs}) => (float[] y) {{
        a, b, c, d = Attention{options}({read})  y = Relu(a)  z = Neg(d) }}"""
    found = values(prepare(model(text, 23)))
    assert [str(found[name].shape) for name in "abcd"] == shapes
    assert str(found["y"].shape) == shapes[0]


def test_gradients_through_scores_of_any_number_of_keys() -> None:
    text = """(double[1,1,S,2] q, double[1,1,T,2] k, double[1,1,T,2] v) => (double l) {
        y, a, b, scores = Attention<scale=1.0>(q, k, v)
        square = Mul(scores, scores)  l = ReduceSum<keepdims=0>(square) }"""
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 3, 2))
    of = build_gradient_graph(proto(text, 23), ["q"], loss="l")
    (found,) = InferenceSession(of).run(["q_grad"], {"q": q, "k": k, "v": k})
    np.testing.assert_allclose(found, 2 * (q @ k.swapaxes(2, 3)) @ k, rtol=1e-12)
