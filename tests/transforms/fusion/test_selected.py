"""Where, as TensorFlow's converter writes it, and attention that it masks."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

SELECT = """f = Cast<to=11>(c) n = Not(c) g = Cast<to=11>(n)
    l = Mul(f, a) r = Mul(g, b) y = Add(l, r)"""
SWAPPED = """f = Cast<to=11>(c) n = Not(c) g = Cast<to=11>(n)
    l = Mul(a, f) r = Mul(b, g) y = Add(r, l)"""
A, B = normal(3, 4, dtype=np.float64), normal(3, 4, seed=1, dtype=np.float64)
C = normal(3, 4, seed=2) > 0


def model(nodes: str, condition: str = "bool[N,4] c", **options) -> Result:
    return fused(
        f"(double[N,4] a, double[N,4] b, {condition}) => (double[N,4] y) {{ {nodes} }}", **options
    )


@pytest.mark.parametrize("nodes", [SELECT, SWAPPED])
def test_a_choice_is_one_node(nodes: str) -> None:
    result = model(nodes)
    assert result.ops == ["Where"]
    assert [v.name for v in result.node("Where").inputs] == ["c", "a", "b"]
    same(result, {"a": A, "b": B, "c": C}, ["a", "b"])


def test_older_opsets_have_no_such_operator() -> None:
    result = model(SELECT, opset=8)
    assert "Where" not in result.ops
    same(result, {"a": A, "b": B, "c": C}, ["a", "b"])


def test_a_condition_of_one_column_and_a_number() -> None:
    body = SELECT.replace("Mul(g, b)", "Mul(g, k)")
    result = fused(
        f"(double[N,4] a, bool[N,1] c) => (double[N,4] y) {{ {body} }}", {"k": np.float64(-3)}
    )
    assert result.ops == ["Where"]
    same(result, {"a": A, "c": C[:, :1]}, ["a"])


@pytest.mark.parametrize(
    "nodes",
    [
        SELECT.replace("Not(c)", "Not(e)"),
        SELECT.replace("n = Not(c)", "n = Identity(c)"),
        SELECT.replace("y = Add", "y = Sub"),
        SELECT.replace("y = Add(l, r)", "t = Add(l, r) y = Add(t, l)"),
    ],
    ids=["another condition", "the same condition", "a difference", "read twice"],
)
def test_what_is_no_choice_stays(nodes: str) -> None:
    result = model(nodes, "bool[N,4] c, bool[N,4] e")
    assert "Where" not in result.ops
    same(result, {"a": A, "b": B, "c": C, "e": ~C}, ["a", "b"])


LIKE = """s = Shape(a) i = Cast<to=6>(s) j = Cast<to=7>(i) o = Expand(true, j) c = And(o, m)"""


@pytest.mark.parametrize(
    ("mask", "of", "ops"),
    [
        ("bool[1,4] m", "a", ["Where"]),
        ("bool[4] m", "a", ["Where"]),
        ("bool[N,4] m", "a", ["Where"]),
        ("bool[1,4] m", "b", ["Shape", "Cast", "Cast", "Expand", "And", "Where"]),
        ("bool[M,4] m", "a", ["Shape", "Cast", "Cast", "Expand", "And", "Where"]),
    ],
)
def test_ones_in_the_shape_of_what_is_chosen_go_away(mask: str, of: str, ops: list[str]) -> None:
    nodes = f"{LIKE} {SELECT}".replace("Shape(a)", f"Shape({of})")
    result = model(nodes, mask, weights={"true": np.bool_(True)})
    assert result.ops == ops
    given = C[0] if mask == "bool[4] m" else C[:1] if "[1" in mask else C
    same(result, {"a": A, "b": B, "m": given}, ["a", "b"])


def test_masked_attention_is_found() -> None:
    body = """(double[B,2,5,3] q, double[B,2,5,3] k, double[B,2,5,3] v) => (double[B,2,5,3] y) {
        t = Transpose<perm=[0,1,3,2]>(k) a = MatMul(q, t)
        s = Shape(a) o = Expand(true, s) c = And(o, m)
        f = Cast<to=11>(c) n = Not(c) g = Cast<to=11>(n)
        l = Mul(f, a) r = Mul(low, g) x = Add(l, r) w = Softmax(x) y = MatMul(w, v)
    }"""
    lower = np.tri(5, dtype=bool)[None, None]
    numbers = {"true": np.bool_(True), "m": lower, "low": np.float64(-1e30)}
    result = fused(body, numbers)
    assert result.ops == ["FlashAttention"]
    assert result.node("FlashAttention").attributes.get_int("is_causal") == 1
    given = {n: normal(3, 2, 5, 3, seed=i, dtype=np.float64) for i, n in enumerate("qkv")}
    same(result, given, ["q", "k", "v"])
