"""Nodes in the bodies of others, which read what is outside: nothing is fused across."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import fused, same

WEIGHTS = {
    "w": normal(4, 4, seed=1, dtype=np.float64),
    "b": normal(4, seed=2, dtype=np.float64),
    "half": np.float64(0.5),
    "two": np.int64(2),
}


@pytest.mark.parametrize(
    ("outside", "inside"),
    [
        ("p = MatMul(x, w)", "a = Add(p, b) t = Add(a, s)"),
        ("p = Mul(x, half)", "q = Transpose<perm=[1,0]>(p) r = MatMul(q, s) t = MatMul(x, r)"),
        ("p = Sigmoid(x)", "a = Mul(x, p) t = Add(a, s)"),
    ],
)
def test_what_is_read_in_a_body_stays_outside(outside: str, inside: str) -> None:
    text = f"""(double[N,4] x) => (double[N,4] y) {{ {outside}
      y = Loop (two, , x) <body = l (int64 i, bool go, double[N,4] s) => (bool on, double[N,4] t) {{
        on = Identity(go) {inside} }}> }}"""
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in WEIGHTS.items() if name in words}
    trained = [name for name in ("w", "b") if name in used]
    result = fused(text, used, trained=trained)
    assert result.ops == [outside.split()[2].partition("(")[0], "Loop"]
    same(result, {"x": normal(3, 4, dtype=np.float64)}, ["x", *trained])
