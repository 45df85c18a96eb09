"""Masks that close what lies ahead, or nothing, are recognised without running anything."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

HEADS, SIZE, LENGTH = 2, 4, 5
NUMBERS = {
    "zero": np.array(0),
    "start": np.array([0]),
    "three": np.array(3),
    "two": np.array(2),
    "half": np.float64(0.5),
    "one": np.array(1),
    "none": np.float64(0),
    "closed": np.float64(-3e38),
    "never": np.float64(-np.inf),
    "unit": np.float64(1),
    "true": np.array(True),
    "ahead": np.array(1),
    "axis0": np.array([0]),
    "axis1": np.array([1]),
    "axis01": np.array([0, 1]),
    "last": np.array([2, 3]),
    "table": np.tri(9, dtype=bool)[None, None],
    "other": ~np.tri(9, dtype=bool)[None, None],
}
ROWS = """n1 = Shape<start=2, end=3>(q) n = Squeeze(n1) i = Range(zero, n, one)
    row = Unsqueeze(i, axis0) column = Unsqueeze(i, axis1)"""
LOWER = """n1 = Shape<start=2, end=3>(q) e = Concat<axis=0>(n1, n1) o = Expand({}, e)
    l = Trilu<upper=0>(o)"""
CAUSAL = {
    "j <= i": f"{ROWS} c = LessOrEqual(row, column) m = Where(c, none, closed)",
    "i >= j": f"{ROWS} c = GreaterOrEqual(column, row) m = Where(c, none, closed)",
    "j > i": f"{ROWS} c = Greater(row, column) m = Where(c, closed, none)",
    "i < j": f"{ROWS} c = Less(column, row) m = Where(c, never, none)",
    "not j > i": f"{ROWS} g = Greater(row, column) c = Not(g) m = Where(c, none, closed)",
    "shifted": f"{ROWS} up = Add(row, three) g = Add(column, three) "
    "c = LessOrEqual(up, g) m = Where(c, none, closed)",
    "and true": f"{ROWS} l = LessOrEqual(row, column) g = GreaterOrEqual(row, zero) "
    "a = And(l, g) c = And(true, a) m = Where(c, none, closed)",
    "expanded": f"{ROWS} l = LessOrEqual(row, column) u = Unsqueeze(l, axis01) "
    "b = Shape<start=0, end=1>(q) e = Concat<axis=0>(b, axis1, n1, n1) c = Expand(u, e) "
    "m = Where(c, none, closed)",
    "one sentence": f"{ROWS} f = Slice(row, start, axis1, axis1) g = Sub(f, one) "
    "h = Concat<axis=-1>(g, row) u = Slice(h, start, n1, axis1) n2 = Add(n1, axis1) "
    "d = Slice(h, axis1, n2, axis1) z = Sub(d, u) x = Equal(z, one) o = Not(x) "
    "w1 = Cast<to=7>(o) here = CumSum(w1, one) there = Transpose(here) e = Equal(here, there) "
    "l = LessOrEqual(row, column) c = And(l, e) m = Where(c, none, closed)",
    "product": f"{ROWS} c = LessOrEqual(row, column) f = Cast<to=11>(c) g = Sub(unit, f) "
    "m = Mul(g, closed)",
    "trilu": "n1 = Shape<start=2, end=3>(q) e = Concat<axis=0>(n1, n1) "
    "o = Expand(closed, e) m = Trilu(o, ahead)",
    "lower": "n1 = Shape<start=2, end=3>(q) e = Concat<axis=0>(n1, n1) "
    "o = ConstantOfShape<value = int64[1] {1}>(e) l = Trilu<upper=0>(o) c = Cast<to=9>(l) "
    "m = Where(c, none, closed)",
    "bits": f"{LOWER.format('three')} b = BitwiseAnd(l, one) c = Cast<to=9>(b) "
    "m = Where(c, none, closed)",
    "quotient": f"{LOWER.format('half')} h = Div(l, half) i = Cast<to=7>(h) c = Cast<to=9>(i) "
    "m = Where(c, none, closed)",
    "table": "n1 = Shape<start=2, end=3>(q) e = Concat<axis=0>(n1, n1) "
    "f = Concat<axis=0>(start, start) c = Slice(table, f, e, last) m = Where(c, none, closed)",
    "other table": "n1 = Shape<start=2, end=3>(q) e = Concat<axis=0>(n1, n1) "
    "f = Concat<axis=0>(start, start) c = Slice(other, f, e, last) m = Where(c, closed, none)",
}
OPEN = {
    "i >= 0": f"{ROWS} c = GreaterOrEqual(column, zero) m = Where(c, none, closed)",
    "zeros": "n1 = Shape<start=2, end=3>(q) m = Expand(none, n1)",
    "the same for all": "n1 = Shape<start=2, end=3>(q) m = Expand(unit, n1)",
}
NEITHER = {
    "j <= i + 1": f"{ROWS} r = Add(column, one) c = LessOrEqual(row, r) m = Where(c, none, closed)",
    "j < i": f"{ROWS} c = Less(row, column) m = Where(c, none, closed)",
    "i <= j": f"{ROWS} c = LessOrEqual(column, row) m = Where(c, none, closed)",
    "weak": f"{ROWS} c = LessOrEqual(row, column) m = Where(c, none, unit)",
    "bits": f"{LOWER.format('two')} b = BitwiseAnd(l, one) c = Cast<to=9>(b) "
    "m = Where(c, none, closed)",
    "a whole quotient": f"{LOWER.format('one')} h = Div(l, two) c = Cast<to=9>(h) "
    "m = Where(c, none, closed)",
    "rounded": f"{LOWER.format('half')} i = Cast<to=7>(l) c = Cast<to=9>(i) "
    "m = Where(c, none, closed)",
    "data": f"{ROWS} l = LessOrEqual(row, column) c = And(l, given) m = Where(c, none, closed)",
}


def model(mask: str, length: str = "L", given: str = "") -> Result:
    shape = f"double[B,{HEADS},{length},{SIZE}]"
    if "given" in mask:
        given = f", bool[B,1,1,{length}] given"
    nodes = f"""{mask}
        t = Transpose<perm=[0,1,3,2]>(k) p = MatMul(q, t) s = Add(p, m) w = Softmax(s)
        y = MatMul(w, v)"""
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in NUMBERS.items() if name in words}
    return fused(f"({shape} q, {shape} k, {shape} v{given}) => ({shape} y) {{ {nodes} }}", used)


def feeds() -> dict[str, np.ndarray]:
    shape = (3, HEADS, LENGTH, SIZE)
    return {name: normal(*shape, seed=i, dtype=np.float64) for i, name in enumerate("qkv")}


@pytest.mark.parametrize("length", ["L", str(LENGTH)])
@pytest.mark.parametrize("written", CAUSAL)
def test_what_lies_ahead_is_closed(written: str, length: str) -> None:
    result = model(CAUSAL[written], length)
    assert result.ops == ["FlashAttention"]
    node = result.node("FlashAttention")
    assert node.attributes.get_int("is_causal") == 1 and len(node.inputs) == 3
    same(result, feeds(), ["q", "k", "v"])


@pytest.mark.parametrize("length", ["L", str(LENGTH)])
@pytest.mark.parametrize("written", OPEN)
def test_a_mask_that_closes_nothing_is_none(written: str, length: str) -> None:
    result = model(OPEN[written], length)
    assert result.ops == ["FlashAttention"]
    node = result.node("FlashAttention")
    assert node.attributes.get_int("is_causal") == 0 and len(node.inputs) == 3
    same(result, feeds(), ["q", "k", "v"])


@pytest.mark.parametrize("length", ["L", str(LENGTH)])
@pytest.mark.parametrize("written", NEITHER)
def test_other_masks_stay_masks(written: str, length: str) -> None:
    result = model(NEITHER[written], length)
    node = result.node("FlashAttention")
    assert node.attributes.get_int("is_causal") == 0 and len(node.inputs) == 4
    given = np.ones((3, 1, 1, LENGTH), bool)
    given[1, ..., 3:] = False
    more = {"given": given} if "given" in NEITHER[written] else {}
    same(result, {**feeds(), **more}, ["q", "k", "v"])


def test_a_mask_for_fewer_columns_than_there_are_is_not_causal() -> None:
    """A triangle of one column would be repeated, and close nothing."""
    result = fused(
        """(double[B,2,L,4] q, double[B,2,L,4] k, double[B,2,L,4] v) => (double[B,2,L,4] y) {
            n1 = Shape<start=2, end=3>(q) n = Squeeze(n1) i = Range(zero, n, one)
            j = Range(zero, one, one) row = Unsqueeze(j, axis0) column = Unsqueeze(i, axis1)
            c = LessOrEqual(row, column) m = Where(c, none, closed)
            t = Transpose<perm=[0,1,3,2]>(k) p = MatMul(q, t) s = Add(p, m) w = Softmax(s)
            y = MatMul(w, v)
        }""",
        {name: NUMBERS[name] for name in ("zero", "one", "none", "closed", "axis0", "axis1")},
    )
    assert result.node("FlashAttention").attributes.get_int("is_causal") == 0
    same(result, feeds(), ["q", "k", "v"])


def test_a_mask_that_is_trained_stays_one_even_if_it_begins_as_nothing() -> None:
    result = fused(
        """(double[B,2,3,4] q, double[B,2,3,4] k, double[B,2,3,4] v) => (double[B,2,3,4] y) {
            t = Transpose<perm=[0,1,3,2]>(k) p = MatMul(q, t) s = Add(p, bias) w = Softmax(s)
            y = MatMul(w, v)
        }""",
        {"bias": np.zeros((1, 2, 3, 3))},
        trained=["bias"],
    )
    assert [value.name for value in result.node("FlashAttention").inputs][3] == "bias"
    short = {name: value[:, :, :3] for name, value in feeds().items()}
    same(result, short, ["q", "k", "v", "bias"])


def test_a_mask_that_is_drawn_is_no_constant() -> None:
    result = fused(
        """(double[2,1,2,4] q, double[2,1,2,4] k, double[2,1,2,4] v) => (double[2,1,2,4] y) {
            m = RandomNormal<dtype=11, shape=[2,2]>()
            t = Transpose<perm=[0,1,3,2]>(k) p = MatMul(q, t) s = Add(p, m) w = Softmax(s)
            y = MatMul(w, v)
        }"""
    )
    assert result.ops == ["RandomNormal", "FlashAttention"]
