"""Keys of heads that were repeated, turned with samples and heads as one axis.

As torch's exporter optimises attention: the Reshape that ends repeating and the one that begins
turning are one, so that there are no repeated keys of four axes.
"""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.attended import B, D, S, T
from transforms.fusion.compare import Result, fused, same

FEEDS = {
    "q": normal(B, 4, T, D, seed=1, dtype=np.float64),
    "k": normal(B, 2, S, D, seed=2, dtype=np.float64),
    "v": normal(B, 2, S, 6, seed=3, dtype=np.float64),
}


def repeated(samples: str, **sizes: list[int]) -> Result:
    shapes = {
        "two": [2],
        "times": [1, 2, 2, 1, 1],
        "flat": [-1, S, D],
        "turned": [-1, 4, D, S],
        "values": [0, 4, -1, 6],
        **sizes,
    }
    return fused(
        f"""(double[{samples},4,4,8] q, double[{samples},2,5,8] k,
            double[{samples},2,5,6] v) => (double[{samples},4,4,6] y) {{
            k5 = Unsqueeze(k, two) ek = Expand(k5, times) f = Reshape(ek, flat)
            g = Transpose<perm=[0,2,1]>(f) t = Reshape(g, turned)
            v5 = Unsqueeze(v, two) ev = Expand(v5, times) u = Reshape(ev, values)
            a = Mul(q, root) b = Mul(t, root) s = MatMul(a, b) w = Softmax(s) y = MatMul(w, u)
        }}""",
        {name: np.array(n) for name, n in shapes.items()} | {"root": np.float64(0.5)},
    )


@pytest.mark.parametrize("samples", ["2", "B"])
def test_the_heads_before_they_were_repeated_are_attended_to(samples: str) -> None:
    result = repeated(samples)
    assert result.ops == ["FlashAttention"]
    node = result.node("FlashAttention")
    assert [value.name for value in node.inputs] == ["q", "k", "v"]
    assert node.attributes["scale"].as_float() == 0.25
    same(result, FEEDS, list(FEEDS))


def test_other_matrices_than_those_of_keys_are_left_alone() -> None:
    """The first Reshape makes [D, S] of [S, D], which is no Transpose; the last one undoes it."""
    result = repeated("2", flat=[-1, D, S])
    assert "Expand" in result.ops
    same(result, FEEDS, list(FEEDS))
