"""Pairs of features that are turned: neighbours, and pairs that are put together again."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

WIDE = {
    "x": normal(2, 3, 4, 6, seed=1, dtype=np.float64),
    "cos": normal(1, 4, 6, seed=2, dtype=np.float64),
    "sin": normal(4, 6, seed=3, dtype=np.float64),
}
"""Angles for features; those of pairs are every second of them."""
NARROW = {name: array[..., ::2] if name != "x" else array for name, array in WIDE.items()}
NUMBERS = {
    "none": [0],
    "half": [3],
    "end": [2**63 - 1],
    "last": [-1],
    "one": [1],
    "two": [2],
    "zero": 0,
    "first": 1,
    "halves": [3, 3],
    "divided": [0, 0, 0, 3, 2],
    "features": [0, 0, 0, 6],
    "more": [0, 0, 0, 0, 6],
}
STEPS = "a = Slice(x, none, end, last, two) b = Slice(x, one, end, last, two)"
GATHERED = """z = Reshape(x, divided)
    a = Gather<axis=4>(z, zero) b = Gather<axis=-1>(z, first)"""
SQUEEZED = """z = Reshape(x, divided) c = Slice(z, none, one, last) d = Slice(z, one, two, last)
    a = Squeeze(c, last) b = Squeeze(d, last)"""
UNBOUND = """z = Reshape(x, divided) c, d = Split<axis=4, num_outputs=2>(z)
    a = Squeeze(c, last) b = Squeeze(d, last)"""
HALVES = "a, b = Split<axis=-1>(x, halves)"
STACK = "u = Unsqueeze({}, last) v = Unsqueeze({}, last) w = Concat<axis=-1>(u, v)"
MERGE = "Reshape(w, features)"
TURNED = f"n = Neg(b) {STACK.format('n', 'a')} t = {MERGE}"
SUM = "p = Mul(x, cos) q = Mul(t, sin) y = Add(p, q)"
PARTS = """ac = Mul(a, cos) bs = Mul(b, sin) r = Sub(ac, bs)
    bc = Mul(b, cos) as = Mul(sin, a) o = Add(as, bc)"""
BACK = """ac = Mul(a, cos) bs = Mul(b, sin) r = Add(ac, bs)
    bc = Mul(b, cos) as = Mul(a, sin) o = Sub(bc, as)"""
STACKED = f"{STACK.format('r', 'o')} y = {MERGE}"


def model(nodes: str, angles: str = "4,3", outputs: str = "double[B,3,4,6] y") -> Result:
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: np.array(value) for name, value in NUMBERS.items() if name in words}
    cos = angles if angles.count(",") > 1 else f"1,{angles}"
    inputs = f"double[B,3,4,6] x, double[{cos}] cos, double[{angles}] sin"
    return fused(f"({inputs}) => ({outputs}) {{ {nodes} }}", used)


def forms(result: Result) -> tuple[int, int]:
    attributes = result.node("Rotate").attributes
    return attributes.get_int("interleaved", 0), attributes.get_int("inverse", 0)


@pytest.mark.parametrize("taken", [STEPS, GATHERED, SQUEEZED, UNBOUND])
def test_neighbours_that_are_turned_are_found(taken: str) -> None:
    result = model(f"{taken} {TURNED} {SUM}", "4,6")
    assert result.ops == ["Rotate"] and result.report.count("Rotate") == 1
    assert forms(result) == (1, 0)
    same(result, WIDE, ["x", "cos", "sin"])


@pytest.mark.parametrize("taken", [STEPS, GATHERED, SQUEEZED, UNBOUND])
@pytest.mark.parametrize("parts", [PARTS, BACK])
def test_neighbours_that_are_put_together_are_found(taken: str, parts: str) -> None:
    result = model(f"{taken} {parts} {STACKED}")
    assert result.ops == ["Rotate"] and result.report.count("Rotate") == 1
    assert forms(result) == (1, int(parts is BACK))
    same(result, NARROW, ["x", "cos", "sin"])


@pytest.mark.parametrize("parts", [PARTS, BACK])
def test_halves_that_are_put_together_are_found(parts: str) -> None:
    result = model(f"{HALVES} {parts} y = Concat<axis=3>(r, o)")
    assert result.ops == ["Rotate"] and forms(result) == (0, int(parts is BACK))
    same(result, NARROW, ["x", "cos", "sin"])


def test_numbers_that_are_complex_in_torch_are_found() -> None:
    """The axis of the two stays, as do those of the angles."""
    nodes = f"""z = Reshape(x, divided) a = Slice(z, none, one, last) b = Slice(z, one, two, last)
        {PARTS} w = Concat<axis=-1>(r, o) y = {MERGE}"""
    result = model(nodes, "4,3,1")
    assert result.ops == ["Squeeze", "Squeeze", "Rotate"] and forms(result) == (1, 0)
    feeds = {"x": WIDE["x"], "cos": NARROW["cos"][0, ..., None], "sin": NARROW["sin"][..., None]}
    same(result, feeds, ["x", "cos", "sin"])


def test_features_and_heads_may_be_divided_and_merged_at_once() -> None:
    """An exporter leaves out the shape in between, which is then made."""
    body = f"""(double[B,4,12] x, double[1,4,1,3] cos, double[4,1,3] sin) => (double[B,4,12] y)
        {{ z = Reshape(x, heads) a = Gather<axis=4>(z, zero) b = Gather<axis=4>(z, first)
        {PARTS} {STACK.format("r", "o")} y = Reshape(w, all) }}"""
    numbers = {"heads": [0, 0, 2, 3, 2], "all": [0, 0, 12], "last": [-1], "zero": 0, "first": 1}
    result = fused(body, {name: np.array(value) for name, value in numbers.items()})
    assert result.ops.count("Rotate") == 1 and {*result.ops} == {"Reshape", "Rotate"}
    feeds = {
        "x": normal(2, 4, 12, seed=1, dtype=np.float64),
        "cos": normal(1, 4, 1, 3, seed=2, dtype=np.float64),
        "sin": normal(4, 1, 3, seed=3, dtype=np.float64),
    }
    same(result, feeds, ["x", "cos", "sin"])


def test_angles_that_are_taken_twice_are_the_same() -> None:
    angles = "s = Gather<axis=-1>(sin, i) e = Gather<axis=-1>(sin, i)"
    parts = PARTS.replace("Mul(sin, a)", "Mul(e, a)").replace("Mul(b, sin)", "Mul(b, s)")
    nodes = f"i = Identity(halved) {angles} {STEPS} {parts} {STACKED}"
    used = {name: np.array(value) for name, value in NUMBERS.items() if name in nodes}
    used["halved"] = np.array([0, 2, 4])
    inputs = "double[B,3,4,6] x, double[4,3] cos, double[4,6] sin"
    result = fused(f"({inputs}) => (double[B,3,4,6] y) {{ {nodes} }}", used)
    assert result.report.count("Rotate") == 1 and "Mul" not in result.ops
    same(result, {**WIDE, "cos": NARROW["cos"][0]}, ["x", "cos", "sin"])


@pytest.mark.parametrize(
    "nodes",
    [
        f"{STEPS} n = Neg(a) {STACK.format('b', 'n')} t = {MERGE} {SUM}",  # the other way round
        f"{STEPS} n = Neg(b) t = Concat<axis=-1>(n, a) {SUM}",  # neighbours become halves
        f"{HALVES} {TURNED} {SUM}",  # halves become neighbours
    ],
)
def test_other_turns_are_nothing_alike(nodes: str) -> None:
    result = model(nodes, "4,6")
    assert "Rotate" not in result.ops and result.report.missed == []


@pytest.mark.parametrize(
    "nodes",
    [
        f"{STEPS} {PARTS} y = Concat<axis=-1>(r, o)",  # neighbours become halves
        f"{HALVES} {PARTS} {STACKED}",  # halves become neighbours
        f"{STEPS} {PARTS} {STACK.format('o', 'r')} y = {MERGE}",  # swapped
        f"{STEPS} {PARTS.replace('Mul(sin, a)', 'Mul(cos, a)')} {STACKED}",  # cosines twice
        f"{STEPS} {PARTS.replace('Mul(b, cos)', 'Mul(a, cos)')} {STACKED}",  # the first one twice
        f"{STEPS} {PARTS.replace('r = Sub', 'r = Add')} {STACKED}",  # mirrored
    ],
)
def test_other_sums_are_nothing_alike(nodes: str) -> None:
    result = model(nodes)
    assert "Rotate" not in result.ops and result.report.missed == []


def test_angles_with_more_elements_are_refused() -> None:
    nodes = f"{STEPS} {PARTS} {STACK.format('r', 'o')} y = Reshape(w, more)"
    result = model(nodes, "2,1,1,4,3", "double[2,B,3,4,6] y")
    assert result.reasons() == ["the cosines or sines may have more elements than what they turn"]


def test_one_angle_for_all_pairs_is_refused() -> None:
    result = model(f"{STEPS} {PARTS} {STACKED}", "4,1")
    assert result.reasons() == ["'cos' does not have an angle for each pair of features"]


def test_pairs_that_others_read_stay() -> None:
    outputs = "double[B,3,4,6] y, double[B,3,4,3] z"
    result = model(f"{STEPS} {PARTS} {STACKED} z = Neg(r)", outputs=outputs)
    assert result.reasons() == ["'r' is read by node 'Neg_z' (Neg) too"]
