"""x·cos + turned(x)·sin."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

FEEDS = {
    "x": normal(2, 3, 4, 6, seed=1, dtype=np.float64),
    "cos": normal(1, 1, 4, 6, seed=2, dtype=np.float64),
    "sin": normal(1, 1, 4, 6, seed=3, dtype=np.float64),
}
NUMBERS = {
    "none": [0],
    "half": [3],
    "end": [2**63 - 1],
    "last": [3],
    "behind": [-1],
    "one": [1],
    "two": [2],
    "minus": [-3],
    "halves": [3, 3],
}
SLICES = "a = Slice(x, none, half, last, one) b = Slice(x, half, end, last, one)"
REST = "n = Neg(b) t = Concat<axis=-1>(n, a)"
SUM = "p = Mul(x, cos) q = Mul(t, sin) y = Add(p, q)"


def model(nodes: str, angles: str = "1,1,4,6", outputs: str = "double[B,3,4,6] y") -> Result:
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: np.array(value) for name, value in NUMBERS.items() if name in words}
    inputs = f"double[B,3,4,6] x, double[{angles}] cos, double[{angles}] sin"
    return fused(f"({inputs}) => ({outputs}) {{ {nodes} }}", used)


@pytest.mark.parametrize(
    "nodes",
    [
        f"{SLICES} {REST} {SUM}",
        f"{SLICES} {REST} p = Mul(cos, x) q = Mul(sin, t) y = Add(q, p)",
        f"a = Slice(x, none, minus, behind) b = Slice(x, minus, end, behind) {REST} {SUM}",
        f"a, b = Split<axis=-1>(x, halves) {REST} {SUM}",
        f"a, b = Split<axis=3, num_outputs=2>(x) {REST.replace('-1', '3')} {SUM}",
    ],
)
def test_it_is_found(nodes: str) -> None:
    result = model(nodes)
    assert result.ops == ["Rotate"] and result.report.count("Rotate") == 1
    assert [value.name for value in result.node("Rotate").inputs] == ["x", "cos", "sin"]
    same(result, FEEDS, ["x", "cos", "sin"])


@pytest.mark.parametrize(
    "nodes",
    [
        f"{SLICES} n = Neg(a) t = Concat<axis=-1>(n, b) {SUM}",  # not swapped
        f"{SLICES} n = Neg(a) t = Concat<axis=-1>(b, n) {SUM}",  # the other one negated
        f"{SLICES} t = Concat<axis=-1>(b, a) {SUM}",  # none negated
        f"a = Slice(x, none, two, last) b = Slice(x, two, end, last) {REST} {SUM}",
        f"a = Slice(x, none, end, last, two) b = Slice(x, one, end, last, two) {REST} {SUM}",
        f"{SLICES} {REST} z = Relu(x) p = Mul(z, cos) q = Mul(t, sin) y = Add(p, q)",
        f"{SLICES} {REST} p = Mul(x, cos) q = Mul(t, sin) y = Sub(p, q)",
    ],
)
def test_other_turns_are_nothing_alike(nodes: str) -> None:
    result = model(nodes)
    assert "Rotate" not in result.ops and result.report.missed == []


def test_angles_with_more_elements_are_refused() -> None:
    result = model(f"{SLICES} {REST} {SUM}", "2,1,1,4,6", "double[2,B,3,4,6] y")
    assert result.reasons() == ["the cosines or sines may have more elements than what they turn"]


def test_one_angle_for_all_features_is_refused() -> None:
    result = model(f"{SLICES} {REST} {SUM}", "1,1,4,1")
    assert result.reasons() == ["'cos' does not have an angle for each feature"]


def test_halves_that_others_read_stay() -> None:
    outputs = "double[B,3,4,6] y, double[B,3,4,3] z"
    result = model(f"{SLICES} {REST} {SUM} z = Relu(a)", outputs=outputs)
    assert result.reasons() == ["'a' is read by node 'Relu_z' (Relu) too"]
