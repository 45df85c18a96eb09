"""Attention whose samples and heads are one axis for a while."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.attended import (
    FEEDS,
    INPUTS,
    NUMBERS,
    TURNED,
    B,
    D,
    H,
    S,
    T,
    model,
)
from transforms.fusion.compare import fused, same

FLAT = (
    "a = Reshape(q, queries) b = Reshape(k, flat) t = Transpose<perm=[0,2,1]>(b) p = MatMul(a, t)"
)
TOGETHER = {
    "scores": f"""{FLAT} r = Mul(p, scale) o = Reshape(r, scores) s = Add(o, m)
        w = Softmax(s) y = MatMul(w, v)""",
    "scores and back": f"""{FLAT} o = Reshape(p, scores) n = Add(o, m) s = Reshape(n, weights)
        w = Softmax(s) u = Reshape(v, values) z = MatMul(w, u) y = Reshape(z, heads)""",
    "all": f"""{FLAT} w = Softmax(p)
        u = Reshape(v, values) z = MatMul(w, u) y = Reshape(z, heads)""",
    "keys turned before": """a = Reshape(q, queries) c = Mul(k, root)
        g = Transpose<perm=[0,1,3,2]>(c) t = Reshape(g, turned) p = MatMul(a, t)
        o = Reshape(p, scores) w = Softmax(o) y = MatMul(w, v)""",
    "weights": f"""{TURNED} p = MatMul(q, t) w = Softmax(p) d = Reshape(w, weights)
        u = Reshape(v, values) z = MatMul(d, u) y = Reshape(z, heads)""",
}


@pytest.mark.parametrize("where", TOGETHER)
def test_samples_and_heads_may_be_one_axis_for_a_while(where: str) -> None:
    nodes = TOGETHER[where]
    masked = ", double[B,1,4,5] m" if "m)" in nodes else ""
    result = model(nodes, masked)
    assert result.ops == ["FlashAttention"]
    feeds = FEEDS | ({"m": normal(B, 1, T, S, seed=8, dtype=np.float64)} if masked else {})
    same(result, feeds, [*FEEDS, *(["m"] if masked else [])])


def test_a_result_with_samples_and_heads_as_one_axis_stays_so() -> None:
    nodes = f"{FLAT} w = Softmax(p) u = Reshape(v, values) y = MatMul(w, u)"
    result = model(nodes, outputs="double[N,4,6] y")
    assert result.ops == ["FlashAttention", "Reshape"]
    same(result, FEEDS, list(FEEDS))


@pytest.mark.parametrize("condition", [False, True])
def test_a_mask_for_each_head_of_each_sample_is_taken_apart(condition: bool) -> None:
    """Before scores are, as the positions of BLOOM are added."""
    masked = "s = Where(c, p, closed)" if condition else "s = Add(p, m)"
    nodes = f"{FLAT} {masked} o = Reshape(s, scores) w = Softmax(o) y = MatMul(w, v)"
    given = "bool[6,4,5] c" if condition else "double[6,1,5] m"
    fixed = INPUTS.replace("B", "2")
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in NUMBERS.items() if name in words}
    result = fused(f"({fixed}, {given}) => (double[2,3,4,6] y) {{ {nodes} }}", used)
    assert result.report.count("FlashAttention") == 1
    c = np.random.default_rng(5).random((6, T, S)) < 0.5
    c[0, 1] = False
    extra = {"c": c} if condition else {"m": normal(6, 1, S, seed=9, dtype=np.float64)}
    same(result, FEEDS | extra, [*FEEDS, *([] if condition else ["m"])])


def test_masks_of_which_only_a_run_knows_the_heads_are_left_alone() -> None:
    nodes = f"{FLAT} s = Add(p, m) o = Reshape(s, scores) w = Softmax(o) y = MatMul(w, v)"
    result = model(nodes, ", double[N,1,5] m")
    assert result.reasons() == ["only a run can tell whether a mask has a matrix for each head"]


def test_sizes_that_are_computed_are_followed() -> None:
    """As torch's older exporter writes the attention of older models."""
    shapes = {
        "at": np.array(0),
        "here": np.array([0]),
        "size": np.array(H),
        "rest": np.array([-1]),
        "deep": np.array([D]),
        "heads_": np.array([H]),
    }
    result = fused(
        """(double[B,3,T,8] q, double[B,3,T,8] k, double[B,3,T,8] v, double[B,1,T,T] m)
            => (double[B,3,T,8] y) {
            all = Shape(q) b_ = Gather(all, at) bh = Mul(b_, size) lead = Unsqueeze(bh, here)
            l = Slice(all, two, three) form = Concat<axis=0>(lead, rest, deep)
            b1 = Unsqueeze(b_, here) form4 = Concat<axis=0>(b1, heads_, l, l)
            form3 = Concat<axis=0>(lead, l, l) back = Concat<axis=0>(b1, heads_, l, deep)
            a = Reshape(q, form) c = Reshape(k, form) u = Reshape(v, form)
            t = Transpose<perm=[0,2,1]>(c) p = MatMul(a, t) o = Reshape(p, form4) n = Add(o, m)
            s = Reshape(n, form3) w = Softmax(s) z = MatMul(w, u) y = Reshape(z, back)
        }""",
        shapes | {"two": np.array([2]), "three": np.array([3])},
    )
    assert result.ops == ["FlashAttention"]
    feeds = {name: normal(B, H, T, D, seed=i, dtype=np.float64) for i, name in enumerate("qkv")}
    feeds["m"] = normal(B, 1, T, T, seed=8, dtype=np.float64)
    same(result, feeds, list(feeds))


def test_heads_that_were_never_apart_are_left_alone() -> None:
    words = {"scores": NUMBERS["scores"]}
    result = fused(
        """(double[6,4,8] q, double[6,8,5] k, double[B,3,5,6] v) => (double[B,3,4,6] y) {
            p = MatMul(q, k) s = Reshape(p, scores) w = Softmax(s) y = MatMul(w, v)
        }""",
        words,
    )
    assert result.reasons() == ["samples and heads of 'q' were never apart"]
