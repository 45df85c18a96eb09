"""x·σ(αx)."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain import Trainer
from training.small import model_of, normal
from transforms.fusion.compare import fused, same

X = 3 * normal(2, 5, seed=1, dtype=np.float64)
NUMBERS = {"two": np.float64(2)}


def model(nodes: str, outputs: str = "double[N,5] y"):
    used = {name: value for name, value in NUMBERS.items() if name in nodes}
    return fused(f"(double[N,5] x) => ({outputs}) {{ {nodes} }}", used)


@pytest.mark.parametrize(
    ("nodes", "alpha"),
    [
        ("s = Sigmoid(x) y = Mul(x, s)", 1.0),
        ("s = Sigmoid(x) y = Mul(s, x)", 1.0),
        ("a = Mul(two, x) s = Sigmoid(a) y = Mul(x, s)", 2.0),
        ("a = Div(x, two) s = Sigmoid(a) y = Mul(x, s)", 0.5),
    ],
)
def test_it_is_found(nodes: str, alpha: float) -> None:
    result = model(nodes)
    assert result.ops == ["QuickGelu"] and result.report.count("Swish") == 1
    assert result.node("QuickGelu").attributes.get_float("alpha") == alpha
    same(result, {"x": X}, ["x"])


def test_a_gate_of_something_else_is_nothing_alike() -> None:
    result = model("s = Sigmoid(x) t = Tanh(x) y = Mul(t, s)")
    assert result.ops == ["Tanh", "Gated"] and result.report.missed == []


def test_a_gate_that_others_read_stays() -> None:
    result = model("s = Sigmoid(x) y = Mul(x, s) z = Relu(s)", "double[N,5] y, double[N,5] z")
    assert result.reasons() == ["'s' is read by other nodes too"]


def test_gradients_have_all_digits_of_the_factor() -> None:
    """A factor in float64 is not rounded to the float32 of a stored attribute."""
    proto = model_of(
        "(double[N,5] x) => (double[N,3] y) "
        "{ h = MatMul(x, w) a = Mul(k, h) s = Sigmoid(a) g = Mul(h, s) y = MatMul(g, v) }",
        {
            **{name: normal(5, n, seed=n, dtype=np.float64) for name, n in (("w", 5), ("v", 3))},
            "k": np.float64(1.702),
        },
    )
    batch = {"x": X, "labels": np.array([0, 2])}
    plain, whole = (
        Trainer(proto, loss="cross_entropy", device="cpu", fuse=fuse).gradients(batch)
        for fuse in (False, True)
    )
    for name, expected in plain.items():
        np.testing.assert_allclose(whole[name], expected, rtol=1e-12, atol=1e-15)
