"""What depends on constants and known sizes only is computed once, equal nodes are one."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, run, same

NUMBERS = {
    "two": np.float64(2),
    "three": np.float64(3),
    "zero": np.array([0]),
    "one": np.array([1]),
    "also_one": np.array([1]),
    "minus": np.array([-1]),
    "far": np.array([2**62]),
    "four": np.array([4]),
    "n": np.array(3),
    "i": np.array(1),
    "o": np.array(0),
    "weight": normal(4, 4, dtype=np.float64),
}
X = normal(3, 4, seed=1, dtype=np.float64)


def model(nodes: str, outputs: str = "double[3,4] y", inputs: str = "double[3,4] x") -> Result:
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in NUMBERS.items() if name in words}
    return fused(f"({inputs}) => ({outputs}) {{ {nodes} }}", used)


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Mul(two, three) b = Sqrt(a) c = Neg(b) d = Div(c, two) y = Mul(x, d)",
        "a = Cast<to=1>(two) b = CastLike(a, x) y = Mul(x, b)",
        "a = Shape(x) b = Cast<to=11>(a) c = ReduceSum(b) y = Mul(x, c)",
        "s = Shape<start=1>(x) a = Concat<axis=0>(minus, s) y = Reshape(x, a)",
        "s = Shape(x) a = Slice(s, one, far) b = Squeeze(a) c = Unsqueeze(b, zero) "
        "d = Gather(s, zero) e = Concat<axis=0>(d, c) y = Reshape(x, e)",
        "r = Range(o, n, i) y = Gather(x, r)",
        "r = Range(o, n, i) p = GatherElements<axis=0>(r, r) y = Gather(x, p)",
        "r = Range(o, n, i) s = Concat<axis=0>(zero, minus) p = Reshape(r, s) q = Squeeze(p, one) "
        "y = Gather(x, q)",
        "a = Identity(x) b = Cast<to=11>(a) s = Shape(x) c = Expand(b, s) "
        "d = Transpose<perm=[0,1]>(c) y = Relu(d)",
        "a = Max(two) b = Min(three, two, a) c = Max(a, three, b) y = Mul(x, c)",
        "a = Shape(x) b = ReduceProd(a) c = ReduceMax<keepdims=0>(a) d = ReduceMin(a, zero) "
        "e = ReduceSum(a) f = Concat<axis=0>(d, minus) y = Reshape(x, f)",
        "a = Less(two, three) b = GreaterOrEqual(two, three) c = Equal(n, i) d = Or(a, b) "
        "e = LessOrEqual(n, i) f = Greater(n, o) g = And(d, f) h = Or(c, e) k = Or(g, h) "
        "m = Cast<to=11>(k) y = Mul(x, m)",
    ],
)
def test_results_stay_the_same(nodes: str) -> None:
    result = model(nodes)
    assert len(result.ops) <= 3
    same(result, {"x": X}, ["x"])


def test_numbers_are_folded_to_the_end() -> None:
    result = model("a = Mul(two, three) b = Sqrt(a) c = Neg(b) d = Div(c, two) y = Mul(x, d)")
    assert result.ops == ["Mul"]


@pytest.mark.parametrize(
    ("call", "size"),
    [("ReduceProd(a)", 12), ("ReduceMax(a, zero)", 4), ("ReduceMin(a)", 3), ("ReduceSum(a)", 7)],
)
def test_sizes_are_reduced(call: str, size: int) -> None:
    result = model(f"a = Shape(x) b = {call} c = ConstantOfShape(b) y = Identity(c)", "float[k] y")
    assert [n.op_type for n in result.after.graph.node if "Reduce" in n.op_type] == []
    assert run(result.after, {"x": X})[0].shape == (size,)


def test_real_numbers_are_added_up_by_the_run() -> None:
    result = model("a = ReduceSum(two) y = Mul(x, a)")
    assert result.ops == ["ReduceSum", "Mul"]


@pytest.mark.parametrize("call", ["Neg(weight)", "Add(weight, two)", "Transpose(weight)"])
def test_weights_are_never_folded(call: str) -> None:
    result = model(f"t = {call} y = MatMul(x, t)")
    assert result.ops == [call.partition("(")[0], "MatMul"]
    assert "weight" in [tensor.name for tensor in result.after.graph.initializer]


def test_an_output_keeps_its_node() -> None:
    result = model("y = Identity(x) z = Mul(two, three)", "double[3,4] y, double z")
    assert result.ops == ["Identity", "Mul"]
    np.testing.assert_array_equal(run(result.after, {"x": X})[1], 6)


def test_equal_nodes_are_one_and_random_ones_are_not() -> None:
    result = model(
        "a = Unsqueeze(x, one) b = Unsqueeze(x, also_one) c = Mul(a, b) y = Squeeze(c, one)"
    )
    assert result.ops.count("Unsqueeze") == 1
    same(result, {"x": X}, ["x"])
    drawn = model("a = RandomNormalLike(x) b = RandomNormalLike(x) c = Add(a, x) y = Add(b, c)")
    assert drawn.ops.count("RandomNormalLike") == 2


def test_whole_numbers_are_not_divided_beforehand() -> None:
    result = model("a = Div(four, one) b = Concat<axis=0>(minus, a) y = Reshape(x, b)")
    assert "Div" in result.ops
    same(result, {"x": X}, ["x"])


def test_what_becomes_a_number_tells_the_sizes_of_what_it_cuts() -> None:
    """ONNX's inference takes no size for the end of a Slice."""
    body = """(double[3,4] x, double[N,2] other) => (double[3,K] y, double[1] size) {
        end = Shape<start=1>(other) part = Slice(x, zero, end, one) both = Concat<axis=1>(part, x)
        y = Neg(both) sizes = Shape<start=1>(both) size = Cast<to=11>(sizes)
    }"""
    result = fused(body, {name: NUMBERS[name] for name in ("zero", "one")})
    assert result.ops == ["Slice", "Concat", "Neg", "Cast"]
    same(result, {"x": X, "other": X[:, :2]}, ["x"])


def test_a_border_of_nothing_is_left_out() -> None:
    """One that moves rows from one side to the other is none, though shapes stay the same."""
    numbers = {"none": np.zeros(4, np.int64), "shift": np.array([1, 0, -1, 0])}
    body = "(double[3,4] x) => (double[3,4] y) {{ p = Pad(x, {}) y = Relu(p) }}"
    for pads, ops in (("none", ["Relu"]), ("shift", ["Pad", "Relu"])):
        result = fused(body.format(pads), {pads: numbers[pads]})
        assert result.ops == ops
        same(result, {"x": X}, ["x"])


def test_sizes_spread_through_a_node_that_leaves_an_output_out() -> None:
    body = """(double[3,4,2] x, double[N,2] other) => (double[1] size) {
        end = Shape<start=1>(other) part = Slice(x, zero, end, one)
        , last = LSTM<hidden_size=1>(part, gates, again) both = Neg(last)
        sizes = Shape<start=1,end=2>(both) size = Cast<to=11>(sizes)
    }"""
    used = {"gates": normal(1, 4, 2, dtype=np.float64), "again": normal(1, 4, 1, dtype=np.float64)}
    result = fused(body, {name: NUMBERS[name] for name in ("zero", "one")} | used)
    assert result.ops == ["Cast"]
    feeds = {"x": normal(3, 4, 2, dtype=np.float64), "other": X[:, :2]}
    assert run(result.after, feeds)[0].tolist() == [2]


def test_a_wrong_declared_size_does_not_keep_others_from_being_folded() -> None:
    """Where nothing is known but what was declared, as of an Expand to sizes of a Range."""
    body = """(double[1,4] x, int64[r] s) => (double[A,B] y) <double[2,5] h> {
        h = Reshape(x, s) p = Mul(i, n) q = Sub(n, i) end = Add(n, q)
        r = Range(p, end, i) wide = Expand(h, r) y = Neg(wide)
    }"""
    result = fused(body, {name: NUMBERS[name] for name in ("n", "i")})
    assert "Range" not in result.ops
    (y,) = run(result.after, {"x": X[:1], "s": np.array([1, 4])})
    np.testing.assert_array_equal(y, np.repeat(-X[:1], 3, 0))
