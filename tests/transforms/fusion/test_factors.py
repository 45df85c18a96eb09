"""Queries and keys that are scaled before their heads are apart."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

B, T, S, H, D = 2, 4, 5, 3, 8
FEEDS = {
    "q": normal(B, T, H * D, seed=1, dtype=np.float64),
    "k": normal(B, S, H * D, seed=2, dtype=np.float64),
    "v": normal(B, S, H * D, seed=3, dtype=np.float64),
}
KEYS = "l = Reshape(k, heads) t = Transpose<perm=[0,2,3,1]>(l)"
VALUES = "u = Reshape(v, heads) w = Transpose<perm=[0,2,1,3]>(u)"
QUERIES = "b = Reshape(a, heads) c = Transpose<perm=[0,2,1,3]>(b)"
REST = f"{VALUES} s = MatMul(c, t) p = Softmax(s) y = MatMul(p, w)"


def model(nodes: str, outputs: str = "double[B,3,4,8] y") -> Result:
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    numbers = {"heads": np.array([0, 0, H, D]), "half": np.float64(0.5), "two": np.array([2.0])}
    used = {name: value for name, value in numbers.items() if name in words}
    inputs = "double[B,4,24] q, double[B,5,24] k, double[B,5,24] v"
    return fused(f"({inputs}) => ({outputs}) {{ {nodes} }}", used)


@pytest.mark.parametrize(
    ("nodes", "scale"),
    [
        (f"a = Mul(q, half) {QUERIES} {KEYS} {REST}", 0.5),
        (f"a = Div(q, two) {QUERIES} {KEYS} {REST}", 0.5),
        (
            f"a = Mul(q, half) {QUERIES} z = Div(k, two) {KEYS.replace('(k,', '(z,')} {REST}",
            0.25,
        ),
    ],
)
def test_attention_scales_by_them(nodes: str, scale: float) -> None:
    result = model(nodes)
    assert not {"Mul", "Div"} & set(result.ops)
    assert result.node("FlashAttention").attributes["scale"].as_float() == scale
    same(result, FEEDS, list(FEEDS))


def test_what_others_read_stays_scaled() -> None:
    outputs = "double[B,3,4,8] y, double[B,4,24] z"
    result = model(f"a = Mul(q, half) z = Relu(a) {QUERIES} {KEYS} {REST}", outputs)
    assert "Mul" in result.ops
    same(result, FEEDS, list(FEEDS))


def test_factors_before_something_else_stay_where_they_are() -> None:
    result = model(f"a = Mul(q, half) {QUERIES} e = Relu(c) g = Add(e, e) y = Identity(g)")
    assert result.ops[0] == "Mul"
