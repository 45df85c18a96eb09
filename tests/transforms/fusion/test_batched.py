"""Products as TensorFlow's converter writes einsums: samples and heads are one axis in between."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

LENGTH, HEADS, SIZE = 5, 2, 3
NUMBERS = {
    "one": np.array([1]),
    "two": np.array([2]),
    "three": np.array([3]),
    "four": np.array([4]),
    "lead": np.array([0, 1]),
    "rest": np.array([-1]),
    "zero": np.array([0]),
    "scale": np.float64(0.5),
}
QUERIES = "q5 = Unsqueeze(q, three) qt = Transpose<perm=[0,2,1,3,4]>(q5)"
KEYS = "k5 = Unsqueeze(k, one) kt = Transpose<perm=[0,3,1,2,4]>(k5)"
VALUES = "v5 = Unsqueeze(v, two) vt = Transpose<perm=[0,3,2,4,1]>(v5)"


def flat(name: str, last: str) -> str:
    """Matrices of five axes as matrices of three."""
    return (
        f"{name}_s = Shape({name}) {name}_l = Gather({name}_s, lead)"
        f" {name}_p = ReduceProd({name}_l) {name}_n = Gather({name}_s, {last})"
        f" {name}_f = Concat<axis=0>({name}_p, rest, {name}_n)"
        f" {name}_m = Reshape({name}, {name}_f)"
    )


def product(name: str, a: str, b: str, rows: str, columns: str) -> str:
    """The product of two, the second one transposed, with five axes, and then with four."""
    return (
        f"{b}_t = Transpose<perm=[0,2,1]>({b}_m) {name}_3 = MatMul({a}_m, {b}_t)"
        f" {name}_lead = Max({a}_l, {b}_l) {name}_a = Gather({a}_s, {rows})"
        f" {name}_b = Gather({b}_s, {columns})"
        f" {name}_f = Concat<axis=0>({name}_lead, {name}_a, {name}_b, one)"
        f" {name}_5 = Reshape({name}_3, {name}_f) {name} = Squeeze({name}_5, four)"
    )


SCORES = " ".join(
    [
        QUERIES,
        KEYS,
        flat("qt", "four"),
        flat("kt", "four"),
        product("s", "qt", "kt", "two", "three"),
    ]
)
WEIGHTED = " ".join(
    [
        "w5 = Unsqueeze(w, three)",
        VALUES,
        flat("w5", "four"),
        flat("vt", "four"),
        product("o", "w5", "vt", "two", "three"),
    ]
)


def feeds(length: int = LENGTH) -> dict[str, np.ndarray]:
    shape = (3, length, HEADS, SIZE)
    return {n: normal(*shape, seed=i, dtype=np.float64) for i, n in enumerate("qkv")}


def model(nodes: str, result: str, length: str = str(LENGTH), **inputs: str) -> Result:
    shapes = {"q": "", "k": "", "v": "", **inputs}
    given = ", ".join(
        f"double[{of or f'B,{length},{HEADS},{SIZE}'}] {name}" for name, of in shapes.items()
    )
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in NUMBERS.items() if name in words}
    return fused(f"({given}) => (double[{result}] y) {{ {nodes} }}", used)


@pytest.mark.parametrize("length", [str(LENGTH), "T"])
def test_attention_is_found(length: str) -> None:
    nodes = f"{SCORES} c = Mul(s, scale) w = Softmax(c) {WEIGHTED} y = Identity(o)"
    result = model(nodes, f"B,{HEADS},{length},{SIZE}", length)
    assert result.report.count("BatchedMatMul") == 2
    assert result.ops == ["Transpose"] * 3 + ["FlashAttention", "Identity"]
    same(result, feeds(), ["q", "k", "v"])


def test_a_product_alone_needs_no_reshaping() -> None:
    result = model(f"{SCORES} y = Relu(s)", f"B,{HEADS},{LENGTH},{LENGTH}")
    assert result.ops == ["Transpose", "Transpose", "MatMul", "Relu"]
    same(result, feeds(), ["q", "k"])


def test_the_axis_of_one_element_stays_where_it_is_read() -> None:
    nodes = SCORES.replace("s = Squeeze(s_5, four)", "y = Relu(s_5)")
    result = model(nodes, f"B,{HEADS},{LENGTH},{LENGTH},1")
    assert result.ops == ["Transpose", "Transpose", "MatMul", "Unsqueeze", "Relu"]
    same(result, feeds(), ["q", "k"])


def test_an_axis_that_nobody_put_in_is_squeezed() -> None:
    nodes = SCORES.replace("q5 = Unsqueeze(q, three)", "q5 = Identity(q)")
    result = model(f"{nodes} y = Relu(s)", f"B,{HEADS},{LENGTH},{LENGTH}", q="B,5,2,1,3")
    assert sorted(result.ops) == ["MatMul", "Relu", "Squeeze", "Transpose", "Transpose"]
    given = {**feeds(), "q": feeds()["q"][:, :, :, None]}
    same(result, given, ["q", "k"])


def test_matrices_that_are_not_transposed() -> None:
    nodes = SCORES.replace("qt = Transpose<perm=[0,2,1,3,4]>(q5)", "qt = Identity(q5)")
    nodes = nodes.replace("kt = Transpose<perm=[0,3,1,2,4]>(k5)", "kt = Identity(k5)")
    nodes = nodes.replace("k5 = Unsqueeze(k, one)", "k5 = Unsqueeze(k, two)")
    result = model(f"{nodes} y = Relu(s)", f"B,{LENGTH},{HEADS},{HEADS}")
    assert result.ops == ["Transpose", "MatMul", "Relu"]
    same(result, feeds(), ["q", "k"])


def test_other_samples_and_heads_on_the_two_sides_stay() -> None:
    nodes = SCORES.replace("s_lead = Max(qt_l, kt_l)", "s_lead = Identity(qt_l)")
    result = model(f"{nodes} y = Relu(s)", "2,3,a,b", q="2,5,3,3", k="3,5,2,3")
    assert result.report.count("BatchedMatMul") == 0
    given = {**feeds(), "q": normal(2, 5, 3, 3, seed=8, dtype=np.float64)}
    same(result, given, ["q", "k"])


TAKEN_APART = "s_f = Concat<axis=0>(s_lead, s_a, s_b, one)"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TAKEN_APART, "s_f = Concat<axis=0>(two, three, s_a, s_b, one)"),
        (TAKEN_APART, "s_f = Concat<axis=0>(s_lead, three, rest, one)"),
        ("qt_p = ReduceProd(qt_l)", "odd = Add(qt_l, zero) qt_p = ReduceProd(odd)"),
    ],
    ids=["other samples and heads", "other matrices", "unknown sizes"],
)
def test_what_is_another_product_stays(old: str, new: str) -> None:
    nodes = SCORES.replace(old, new)
    assert nodes != SCORES
    result = model(f"{nodes} y = Relu(s)", "a,b,c,d", "6")
    assert result.report.count("BatchedMatMul") == 0
    same(result, feeds(6), ["q", "k"])
