"""Parts of a packed projection come from Split, and their heads without copies."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

NUMBERS = {
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "last": np.array(-1),
    "first_vector": np.array([0]),
    "front": np.array([0]),
    "behind": np.array([-2]),
    "three_parts": np.array([4, 2, 3, 8]),
    "heads": np.array([4, 2, 3, 2, 4]),
    "merged": np.array([4, 4, 4]),
    "split": np.array([2, 2, 4, 4]),
    "other": np.array([4, 3, 2, 8]),
}
X = normal(4, 2, 24, dtype=np.float64)


def model(nodes: str, inputs: str = "double[4,2,24] x", opset: int = 20) -> Result:
    nodes = nodes.replace("y = ", "z = ") + " y = Flatten(z)"
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in NUMBERS.items() if name in words}
    return fused(f"({inputs}) => (double[A,B] y) {{ {nodes} }}", used, opset=opset)


PICKED = "a = Gather(p, zero) b = Gather(p, one) c = Gather(p, last) ab = Mul(a, b) "


@pytest.mark.parametrize(
    "nodes",
    [
        "r = Reshape(x, three_parts) u = Unsqueeze(r, front) "
        "t = Transpose<perm=[3,1,2,0,4]>(u) p = Squeeze(t, behind) " + PICKED + "y = Add(ab, c)",
        "r = Reshape(x, heads) p = Transpose<perm=[2,0,3,1,4]>(r) " + PICKED + "y = Add(ab, c)",
        "p = Reshape(x, three_parts) a = Gather<axis=2>(p, zero) b = Gather<axis=-2>(p, one) "
        "c = Gather<axis=2>(p, two) ab = Mul(a, b) y = Sub(ab, c)",
    ],
)
def test_parts_that_are_all_picked_are_split(nodes: str) -> None:
    result = model(nodes)
    assert "Split" in result.ops and "Gather" not in result.ops
    assert result.report.count("PackedSplit") == 1
    same(result, {"x": X}, ["x"])


def test_sizes_are_an_attribute_in_older_models() -> None:
    nodes = "r = Reshape(x, heads) p = Transpose<perm=[2,0,3,1,4]>(r) " + PICKED + "y = Add(ab, c)"
    result = model(nodes, opset=11)
    assert "Split" in result.ops
    same(result, {"x": X}, ["x"])


@pytest.mark.parametrize(
    "nodes",
    [
        "r = Reshape(x, heads) p = Transpose<perm=[2,0,3,1,4]>(r) "
        "a = Gather(p, zero) b = Gather(p, one) y = Mul(a, b)",
        "r = Reshape(x, heads) p = Transpose<perm=[2,0,3,1,4]>(r) a = Gather(p, zero) "
        "b = Gather(p, one) c = Gather(p, one) ab = Mul(a, b) y = Add(ab, c)",
        "r = Reshape(x, heads) p = Transpose<perm=[3,0,2,1,4]>(r) "
        "a = Gather(p, zero) b = Gather(p, one) y = Mul(a, b)",
        "r = Reshape(x, other) p = Transpose<perm=[1,0,2,3]>(r) " + PICKED + "y = Add(ab, c)",
        "r = Reshape(x, heads) p = Transpose<perm=[2,0,3,1,4]>(r) " + PICKED + "d = Add(ab, c) "
        "e = Gather(p, first_vector) y = Add(d, e)",
        "r = Reshape(x, three_parts) p = Transpose<perm=[2,0,1,3]>(r) " + PICKED + "d = Add(ab, c) "
        "e = ReduceSum<keepdims=0>(r, behind) y = Add(d, e)",
    ],
)
def test_other_picks_stay(nodes: str) -> None:
    result = model(nodes)
    assert "Gather" in result.ops and "Split" not in result.ops
    same(result, {"x": X}, ["x"])


def test_a_batch_of_any_size_is_split() -> None:
    nodes = (
        "s = Shape<start=0, end=2>(x) k = Concat<axis=0>(s, rest) r = Reshape(x, k) "
        "p = Transpose<perm=[2,0,3,1,4]>(r) " + PICKED + "y = Add(ab, c)"
    )
    used = {key: NUMBERS[key] for key in ("zero", "one", "last")} | {"rest": np.array([3, 2, 4])}
    result = fused(f"(double[N,T,24] x) => (double[A,B,C,D] y) {{ {nodes} }}", used)
    assert "Split" in result.ops
    same(result, {"x": X}, ["x"])


HEADS = "(double[4,2,8] x) => (double[2,2,4,4] y)"


@pytest.mark.parametrize(
    ("body", "done"),
    [
        ("r = Reshape(x, merged) t = Transpose<perm=[1,0,2]>(r) y = Reshape(t, split)", True),
        (
            "r = Reshape(x, merged) t = Transpose<perm=[1,0,2]>(r) u = Transpose<perm=[0,2,1]>(t) "
            "y = Reshape(u, split)",
            True,
        ),
        ("t = Transpose<perm=[1,0,2]>(x) y = Reshape(t, split)", False),
        ("r = Reshape(x, merged) y = Reshape(r, split)", False),
        (
            "r = Reshape(x, merged) t = Transpose<perm=[1,0,2]>(r) z = Reshape(t, split) "
            "e = Reshape(r, split) y = Mul(z, e)",
            False,
        ),
    ],
)
def test_axes_are_divided_before_they_are_moved(body: str, done: bool) -> None:
    result = fused(f"{HEADS} {{ {body} }}", {key: NUMBERS[key] for key in ("merged", "split")})
    assert result.report.count("DividedHeads") == int(done)
    assert not done or result.ops == ["Reshape", "Transpose"]
    same(result, {"x": normal(4, 2, 8, dtype=np.float64)}, ["x"])


@pytest.mark.parametrize("shape", [[2, 16, 2], [16, 4], [4, 4, 4], [64]])
def test_axes_that_are_joined_stay(shape: list[int]) -> None:
    body = "r = Reshape(x, merged) t = Transpose<perm=[1,0,2]>(r) y = Reshape(t, shape)"
    weights = {"merged": NUMBERS["merged"], "shape": np.array(shape)}
    sizes = ",".join("ABCD"[: len(shape)])
    result = fused(f"(double[4,2,8] x) => (double[{sizes}] y) {{ {body} }}", weights)
    assert result.report.count("DividedHeads") == 0
    same(result, {"x": normal(4, 2, 8, dtype=np.float64)}, ["x"])
