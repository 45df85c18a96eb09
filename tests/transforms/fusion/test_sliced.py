"""Slices that are all parts of a value."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

X = normal(2, 6, 4, seed=1, dtype=np.float64)
NUMBERS = {
    "zero": [0],
    "one": [1],
    "two": [2],
    "three": [3],
    "five": [5],
    "end": [2**63 - 1],
    "minus": [-4],
    "last": [-1],
}
ROLL = "a = Slice(x, zero, two, one) b = Slice(x, two, end, one) y = Concat<axis=1>(b, a)"
EVERY = "a = Slice(x, zero, end, one, two) b = Slice(x, one, end, one, two)"


def model(nodes: str, shape: str = "N,6,4", out: str = "N,M,K", opset: int = 20) -> Result:
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: np.array(value) for name, value in NUMBERS.items() if name in words}
    return fused(f"(double[{shape}] x) => (double[{out}] y) {{ {nodes} }}", used, opset=opset)


@pytest.mark.parametrize(
    "nodes",
    [
        ROLL,
        "b = Slice(x, minus, end, one) a = Slice(x, zero, minus, one) y = Concat<axis=1>(b, a)",
        "a = Slice(x, zero, one, last) b = Slice(x, one, three, last) "
        "c = Slice(x, three, end, last) d = Mul(a, c) y = Concat<axis=2>(b, d)",
        ROLL.replace("(b, a)", "(b, x, a)"),
        f"{EVERY} y = Mul(a, b)",
        "a = Slice(x, zero, end, one, three) b = Slice(x, one, end, one, three) "
        "c = Slice(x, two, end, one, three) d = Mul(a, c) y = Sub(b, d)",
        f"{EVERY} c = Slice(a, zero, end, two, two) d = Slice(a, one, end, two, two) "
        "e = Slice(b, zero, end, two, two) f = Slice(b, one, end, two, two) "
        "y = Concat<axis=-1>(c, e, d, f)",
    ],
)
def test_they_come_from_a_split(nodes: str) -> None:
    result = model(nodes)
    assert "Slice" not in result.ops and "Split" in result.ops
    assert result.report.count("SlicedSplit") >= 1
    same(result, {"x": X}, ["x"])


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Slice(x, zero, two, one) b = Slice(x, three, end, one) y = Concat<axis=1>(b, a)",
        "a = Slice(x, zero, three, one) b = Slice(x, two, end, one) y = Concat<axis=1>(b, a)",
        "a = Slice(x, zero, two, one) b = Slice(x, two, five, one) y = Concat<axis=1>(b, a)",
        "a = Slice(x, zero, two, one) b = Slice(x, two, end, two) c = Slice(b, zero, two, one) "
        "d = Slice(a, two, end, two) y = Add(c, d)",
        EVERY.replace("x, one, end", "x, zero, end") + " y = Mul(a, b)",
        EVERY.replace("x, one, end", "x, one, five") + " c = Slice(a, one, end, one) y = Mul(c, b)",
        "y = Slice(x, zero, two, one)",
    ],
)
def test_other_parts_stay(nodes: str) -> None:
    result = model(nodes)
    assert "Slice" in result.ops and result.report.count("SlicedSplit") == 0
    same(result, {"x": X}, ["x"])


def test_axes_of_unknown_size_stay() -> None:
    assert "Slice" in model(ROLL, shape="N,S,4").ops
    assert "Slice" in model(f"{EVERY} y = Mul(a, b)", shape="N,6,S").ops


def test_parts_that_are_outputs_stay() -> None:
    body = f"(double[2,6,4] x) => (double[2,4,4] b, double[2,6,4] y) {{ {ROLL} }}"
    names = ("zero", "one", "two", "end")
    assert "Split" not in fused(body, {name: np.array(NUMBERS[name]) for name in names}).ops
