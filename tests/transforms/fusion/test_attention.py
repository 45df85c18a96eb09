"""Attention around a Softmax, in the ways in which it is written."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from training.small import normal
from transforms.fusion.attended import (
    FEEDS,
    INPUTS,
    TURNED,
    B,
    D,
    H,
    K,
    Q,
    S,
    T,
    V,
    attention,
    model,
)
from transforms.fusion.compare import fused, same

SCALED = {
    "not": (f"{TURNED} s = MatMul(q, t)", 1),
    "behind, Mul": (f"{TURNED} p = MatMul(q, t) s = Mul(p, scale)", 0.25),
    "behind, Div": (f"{TURNED} p = MatMul(q, t) s = Div(p, four)", 0.25),
    "queries": (f"{TURNED} a = Mul(scale, q) s = MatMul(a, t)", 0.25),
    "keys": ("a = Mul(k, scale) t = Transpose<perm=[0,1,3,2]>(a) s = MatMul(q, t)", 0.25),
    "both": (f"{TURNED} a = Mul(q, root) b = Mul(t, root) s = MatMul(a, b)", 0.25),
    "flat": (
        "f = Reshape(k, flat) g = Transpose<perm=[0,2,1]>(f) t = Reshape(g, swapped) "
        "a = Mul(q, root) b = Mul(t, root) s = MatMul(a, b)",
        0.25,
    ),
}


@pytest.mark.parametrize("scaled", SCALED)
def test_it_is_found_wherever_it_is_scaled(scaled: str) -> None:
    nodes, scale = SCALED[scaled]
    result = model(f"{nodes} w = Softmax(s) y = MatMul(w, v)")
    assert result.ops == ["FlashAttention"]
    node = attention(result)
    assert [value.name for value in node.inputs] == ["q", "k", "v"]
    assert node.attributes.get_float("scale") == pytest.approx(scale)
    same(result, FEEDS, ["q", "k", "v"])


def test_a_scale_that_float32_cannot_hold_stays_in_double() -> None:
    result = model(f"{TURNED} p = MatMul(q, t) s = Mul(p, third) w = Softmax(s) y = MatMul(w, v)")
    assert result.ops == ["Mul", "FlashAttention"]
    same(result, FEEDS, ["q", "k", "v"])
    single = fused(
        f"""(float[B,3,4,8] q, float[B,3,5,8] k, float[B,3,5,6] v) => (float[B,3,4,6] y) {{
            {TURNED} p = MatMul(q, t) s = Mul(p, third) w = Softmax(s) y = MatMul(w, v)
        }}""",
        {"third": np.float32(1 / 3)},
    )
    assert single.ops == ["FlashAttention"]
    assert attention(single).attributes.get_float("scale") == np.float32(1 / 3)


def test_keys_that_were_transposed_with_their_heads_are_transposed_back() -> None:
    result = fused(
        """(double[B,4,3,8] q, double[B,5,3,8] k, double[B,3,5,6] v) => (double[B,3,4,6] y) {
            a = Transpose<perm=[0,2,1,3]>(q)
            t = Transpose<perm=[0,2,3,1]>(k)
            s = MatMul(a, t) w = Softmax(s) y = MatMul(w, v)
        }"""
    )
    assert result.ops == ["Transpose", "Transpose", "FlashAttention"]
    (turned,) = (n for n in ir.from_proto(result.after).graph if n.inputs[0].name == "k")
    assert list(turned.attributes.get_ints("perm")) == [0, 2, 1, 3]
    feeds = {"q": Q.swapaxes(1, 2), "k": K.swapaxes(1, 2), "v": V}
    same(result, feeds, ["q", "k", "v"])


def test_keys_that_come_transposed_are_turned() -> None:
    result = fused(
        """(double[B,3,4,8] q, double[B,3,8,5] k, double[B,3,5,6] v) => (double[B,3,4,6] y) {
            a = Relu(q) t = Relu(k) s = MatMul(a, t) w = Softmax(s) y = MatMul(w, v)
        }"""
    )
    assert result.ops == ["Relu", "Relu", "Transpose", "FlashAttention"]
    same(result, {"q": Q, "k": K.swapaxes(2, 3), "v": V}, ["q", "k", "v"])


MASKED = {
    "added": ("s = Add(p, m) w = Softmax(s)", "double[B,1,1,5] m", "m"),
    "added first": ("s = Add(m, p) w = Softmax(s)", "double[4,5] m", "m"),
    "chosen": ("s = Where(c, p, closed) w = Softmax(s)", "bool[B,1,4,5] c", None),
    "closed": ("s = Where(c, closed, p) w = Softmax(s)", "bool[B,1,4,5] c", None),
    "never": ("s = Where(c, p, never) w = Softmax(s)", "bool[B,1,4,5] c", None),
    "always": ("s = Where(c, never, p) w = Softmax(s)", "bool[B,1,4,5] c", None),
    "twice": ("o = Where(c, p, closed) s = Add(o, m) w = Softmax(s)",
              "bool[B,1,4,5] c, double[4,5] m", "m"),
    "from a condition": ("m = Where(c, zero, closed) s = Add(p, m) w = Softmax(s)",
                         "bool[B,1,4,5] c", None),
    "guarded": ("s = Where(c, p, never) u = Softmax(s) n = IsNaN(u) w = Where(n, zero, u)",
                "bool[B,1,4,5] c", None),
}  # fmt: skip


def mask_feeds(inputs: str, closed: bool) -> dict[str, np.ndarray]:
    """Masks that leave the first pair of each query open, or the last if they close pairs."""
    c = np.random.default_rng(5).random((B, 1, T, S)) < 0.5
    c[..., 0] = not closed
    m = normal(*((T, S) if "[4,5] m" in inputs else (B, 1, 1, S)), seed=6, dtype=np.float64)
    return {name: value for name, value in (("c", c), ("m", m)) if f"] {name}" in inputs}


@pytest.mark.parametrize("masked", MASKED)
def test_masks_are_passed_on(masked: str) -> None:
    nodes, inputs, trained = MASKED[masked]
    result = model(
        f"{TURNED} r = MatMul(q, t) p = Mul(r, scale) {nodes} y = MatMul(w, v)", f", {inputs}"
    )
    assert len(attention(result).inputs) == 4 and "Softmax" not in result.ops
    feeds = {**FEEDS, **mask_feeds(inputs, masked in ("closed", "always"))}
    same(result, feeds, ["q", "k", "v", *([trained] if trained else [])])


def test_a_query_that_may_see_nothing_gets_nothing() -> None:
    nodes, inputs, _ = MASKED["guarded"]
    result = model(f"{TURNED} p = MatMul(q, t) {nodes} y = MatMul(w, v)", f", {inputs}")
    c = np.ones((B, 1, T, S), bool)
    c[0, 0, 1] = False
    node = attention(result)
    assert node.inputs[3] is not None and node.inputs[3].name == "c"
    same(result, {**FEEDS, "c": c}, ["v"])


def test_a_query_that_sees_everything_a_little_still_does() -> None:
    """A mask of a finite number closes all pairs of a query alike, which opens them again."""
    nodes, inputs, _ = MASKED["from a condition"]
    result = model(f"{TURNED} p = MatMul(q, t) {nodes} y = MatMul(w, v)", f", {inputs}")
    c = np.ones((B, 1, T, S), bool)
    c[0, 0, 1] = False
    same(result, {**FEEDS, "c": c}, ["q", "k", "v"])


SILENCED = {
    "one": ("s = Where(c, p, closed) w = Softmax(s)", "bool[B,1,4,5] c"),
    "closing": ("s = Where(c, weak, p) w = Softmax(s)", "bool[B,1,4,5] c"),
    "for all": ("s = Where(c, p, weak) w = Softmax(s)", "bool c"),
    "over a bias": ("o = Add(p, m) s = Where(c, o, weak) w = Softmax(s)",
                    "bool[B,1,4,5] c, double[4,5] m"),
    "under a bias": ("o = Where(c, p, weak) s = Add(o, m) w = Softmax(s)",
                     "bool[B,1,4,5] c, double[4,5] m"),
    "two": ("n = Not(c) d = Slice(n, none, column, column) o = Where(d, p, weak) "
            "s = Where(c, o, closed) w = Softmax(s)", "bool[B,1,4,5] c"),
}  # fmt: skip


@pytest.mark.parametrize("masked", SILENCED)
def test_a_query_whose_scores_are_all_replaced_weighs_alike_without_a_gradient(masked: str) -> None:
    nodes, inputs = SILENCED[masked]
    result = model(f"{TURNED} p = MatMul(q, t) {nodes} y = MatMul(w, v)", f", {inputs}")
    attention(result)
    c = np.zeros((B, 1, T, S), bool)
    c[1, 0, 2:, 1:] = True
    c = ~c if masked == "closing" else c
    m = normal(T, S, seed=6, dtype=np.float64)
    feeds = {"c": c if "] c" in inputs else np.array(False), **({"m": m} if " m" in inputs else {})}
    same(result, {**FEEDS, **feeds}, ["q", "k", "v", *(["m"] if " m" in inputs else [])])


PRODUCT = f"{TURNED} s = MatMul(q, t) u = Softmax(s)"


def test_dropout_that_does_nothing_is_left_out() -> None:
    for nodes in ("w = Dropout(u)", "w = Dropout(u, half, off)", "w = Dropout(u, ratio, on)"):
        result = model(f"{PRODUCT} {nodes} y = MatMul(w, v)")
        assert result.ops == ["FlashAttention"]
        assert attention(result).attributes.get_float("dropout") == 0
        same(result, FEEDS, ["q", "k", "v"])


def test_dropout_in_training_form_becomes_that_of_the_operator() -> None:
    result = model(f"{PRODUCT} w = Dropout(u, half, on) y = MatMul(w, v)")
    assert result.ops == ["FlashAttention"]
    assert attention(result).attributes.get_float("dropout") == 0.5


@pytest.mark.parametrize(("opset", "axis"), [(12, "<axis=2>"), (13, "")])
@pytest.mark.parametrize("matrices", ["B", "M"])
def test_matrices_without_heads_get_them_for_the_time_of_it(
    matrices: str, opset: int, axis: str
) -> None:
    result = fused(
        f"""(double[B,4,8] q, double[B,5,8] k, double[B,5,6] v, double[{matrices},4,5] m)
            => (double[B,4,6] y) {{
            a = Relu(q) t = Transpose<perm=[0,2,1]>(k)
            p = MatMul(a, t) s = Add(p, m) w = Softmax{axis}(s) y = MatMul(w, v)
        }}""",
        opset=opset,
    )
    attention(result)
    feeds = {"q": Q[:, 0], "k": K[:, 0], "v": V[:, 0], "m": normal(B, T, S, dtype=np.float64)}
    same(result, feeds, ["q", "k", "v", "m"])


def test_softmax_was_along_the_second_axis_once() -> None:
    result = fused(
        f"""({INPUTS}) => (double[B,3,4,6] y) {{
            {TURNED} s = MatMul(q, t) w = Softmax(s) y = MatMul(w, v)
        }}""",
        opset=12,
    )
    assert result.reasons() == ["Softmax is along axis 1, not along the last one"]
    flat = "double[B,4,8] q, double[B,8,5] k, double[B,5,6] v"
    nodes = "s = MatMul(q, k) w = Softmax(s) y = MatMul(w, v)"
    result = fused(f"({flat}) => (double[B,4,6] y) {{ {nodes} }}", opset=12)
    assert result.reasons() == ["Softmax is along axis 1, not along the last one"]


def test_heads_that_queries_share_are_not_repeated() -> None:
    result = fused(
        """(double[B,4,T,8] q, double[B,2,S,8] k, double[B,2,S,6] v) => (double[B,4,T,6] y) {
            k5 = Unsqueeze(k, two) n = Shape(k5) b = Slice(n, zero, one) l = Slice(n, three, four)
            sk = Concat<axis=0>(b, two, two, l, eight) ek = Expand(k5, sk)
            mk = Concat<axis=0>(b, four, l, eight) rk = Reshape(ek, mk)
            v5 = Unsqueeze(v, two) sv = Concat<axis=0>(b, two, two, l, six) ev = Expand(v5, sv)
            mv = Concat<axis=0>(b, four, l, six) rv = Reshape(ev, mv)
            t = Transpose<perm=[0,1,3,2]>(rk)
            s = MatMul(q, t) w = Softmax(s) y = MatMul(w, rv)
        }""",
        {
            name: np.array([number])
            for name, number in (
                ("zero", 0), ("one", 1), ("two", 2), ("three", 3), ("four", 4), ("six", 6),
                ("eight", 8),
            )
        },
    )  # fmt: skip
    assert result.ops == ["FlashAttention"]
    assert [value.name for value in attention(result).inputs] == ["q", "k", "v"]
    q = normal(B, 4, T, D, seed=1, dtype=np.float64)
    same(result, {"q": q, "k": K[:, :2], "v": V[:, :2]}, ["q", "k", "v"])


REFUSED = {
    "the mask is scaled": (
        "p = MatMul(q, t) m = Add(p, b) s = Mul(m, scale) w = Softmax(s) y = MatMul(w, v)",
        "'Mul_s' (Mul) scales the mask as well",
    ),
    "another axis": (
        "s = MatMul(q, t) w = Softmax<axis=1>(s) y = MatMul(w, v)",
        "Softmax is along axis 1, not along the last one",
    ),
    "weights are read": (
        "s = MatMul(q, t) w = Softmax(s) y = MatMul(w, v) z = Relu(w)",
        "'w' is read by node 'Relu_z' (Relu) too",
    ),
    "no large number": (
        "p = MatMul(q, t) s = Where(c, p, little) w = Softmax(s) y = MatMul(w, v)",
        "'Where_s' (Where) does not close scores by a large negative number",
    ),
    "another tensor": (
        "p = MatMul(q, t) s = Where(c, p, x4) w = Softmax(s) y = MatMul(w, v)",
        "'Where_s' (Where) does not close scores by a large negative number",
    ),
    "a larger condition": (
        "p = MatMul(q, t) s = Where(c4, p, never) w = Softmax(s) y = MatMul(w, v5)",
        "the mask of 'Where_s' (Where) is larger than the scores",
    ),
    "a sum of no product": ("s = Add(x4, b) w = Softmax(s) y = MatMul(w, v)", None),
    "moved": (
        "p = MatMul(q, t) s = Transpose<perm=[0,2,1,3]>(p) u = Softmax(s) "
        "w = Transpose<perm=[0,2,1,3]>(u) y = MatMul(w, v)",
        None,
    ),
    "moved before": (
        "p = MatMul(q, t) s = Transpose<perm=[0,2,1,3]>(p) w = Softmax(s) y = MatMul(w, x)",
        "Transpose 'Transpose_s' stands between the product and Softmax",
    ),
    "scores are rounded": (
        "p = MatMul(q, t) i = Cast<to=7>(p) s = Cast<to=11>(i) w = Softmax(s) y = MatMul(w, v)",
        None,
    ),
    "weights are rounded": (
        "s = MatMul(q, t) u = Softmax(s) i = Cast<to=7>(u) w = Cast<to=11>(i) y = MatMul(w, v)",
        None,
    ),
    "the mask of Dropout": (
        "s = MatMul(q, t) u = Softmax(s) w, n = Dropout(u, half, on) y = MatMul(w, v) a = Not(n)",
        "the mask of 'Dropout_w' (Dropout) is read by other nodes",
    ),
    "a seed": (
        "s = MatMul(q, t) u = Softmax(s) w = Dropout<seed=3>(u, half, on) y = MatMul(w, v)",
        "'Dropout_w' (Dropout) has a seed of its own",
    ),
    "a switch": (
        "s = MatMul(q, t) u = Softmax(s) w = Dropout(u, half, d) y = MatMul(w, v)",
        "only a run can tell whether 'Dropout_w' (Dropout) drops anything",
    ),
    "a ratio": (
        "s = MatMul(q, t) u = Softmax(s) w = Dropout(u, r, on) y = MatMul(w, v)",
        "only a run can tell how much 'Dropout_w' (Dropout) drops",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_nearly_attention_is_refused(name: str) -> None:
    nodes, reason = REFUSED[name]
    more = {"z": ", double[B,3,4,5] z", "a": ", bool[B,3,4,5] a"}
    outputs = "".join(more[key] for key in more if f" {key} = " in nodes)
    shape = "double[B,4,3,6] y" if name == "moved before" else "double[B,3,4,6] y"
    shape = "double[2,B,3,4,6] y" if name == "a larger condition" else shape
    result = model(
        f"{TURNED} {nodes}",
        ", double[5] b, bool[4,5] c, bool d, double r, double[B,4,5,6] x, double[B,3,4,5] x4, "
        "bool[2,1,1,4,5] c4, double[2,1,3,5,6] v5",
        shape + outputs,
    )
    assert "FlashAttention" not in result.ops
    assert result.reasons() == ([] if reason is None else [reason])


def test_samples_that_are_repeated_are_refused() -> None:
    result = fused(
        """(double[B,3,4,8] q, double[1,3,8,5] t, double[B,3,5,6] v) => (double[B,3,4,6] y) {
            a = Relu(q) b = Relu(t) s = MatMul(a, b) w = Softmax(s) y = MatMul(w, v)
        }"""
    )
    assert result.reasons() == ["axis 0 is B for queries, 1 for keys"]


@pytest.mark.parametrize("one", ["q", "k", "v"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_what_a_run_has_one_of_is_repeated(one: str, axes: tuple[int, ...]) -> None:
    """Sizes of different names may be 1 and another, which products take for repeated."""
    result = fused(
        f"""(double[A,F,4,8] q, double[C,G,5,8] k, double[E,H,5,8] v) => (double[M,N,4,8] y) {{
            {TURNED} s = MatMul(q, t) w = Softmax(s) y = MatMul(w, v)
        }}"""
    )
    assert result.ops == ["FlashAttention"]
    feeds = FEEDS | {"v": normal(B, H, S, D, seed=3, dtype=np.float64)}
    for axis in axes:
        feeds[one] = feeds[one][(slice(None),) * axis + (slice(1),)].copy()
    same(result, feeds, list(feeds))


def test_types_that_differ_are_refused() -> None:
    """As GPT-J of half precision has them, whose scores are products in single precision."""
    result = fused(
        f"""(float[B,3,4,8] q, float[B,3,5,8] k, float16[B,3,5,6] v) => (float16[B,3,4,6] y) {{
            {TURNED} s = MatMul(q, t) u = Softmax(s) w = Cast<to=10>(u) y = MatMul(w, v)
        }}"""
    )
    assert result.reasons() == [
        "queries, keys and values are of different types: FLOAT, FLOAT, FLOAT16"
    ]
    assert "FlashAttention" not in result.ops


def test_ranks_that_differ_are_refused() -> None:
    result = fused(
        """(double[B,3,4,8] q, double[3,8,5] t, double[B,3,5,6] v) => (double[B,3,4,6] y) {
            a = Relu(q) b = Relu(t) s = MatMul(a, b) w = Softmax(s) y = MatMul(w, v)
        }"""
    )
    assert result.reasons() == ["queries, keys and values have ranks [4, 3, 4], not all 3 or all 4"]


def test_a_classifier_is_nothing_alike() -> None:
    result = fused(
        "(double[N,4] x) => (double[N,2] y) { a = MatMul(x, w) b = Softmax(a) y = MatMul(b, u) }",
        {"w": normal(4, 3, dtype=np.float64), "u": normal(3, 2, dtype=np.float64)},
    )
    assert result.report.fused == result.report.missed == []


def test_the_default_scale_is_not_assumed() -> None:
    result = model(f"{PRODUCT} y = MatMul(u, v)")
    assert attention(result).attributes.get_float("scale") == 1 != 1 / math.sqrt(D)


@pytest.mark.parametrize(("keys", "values"), [(1, 1), (1, 3), (3, 1)])
def test_heads_may_share_one_head_of_keys_and_values(keys: int, values: int) -> None:
    """As those of Falcon do, whose products broadcast; there must be one of both."""
    result = fused(
        f"""(double[B,3,4,8] q, double[B,{keys},5,8] k, double[B,{values},5,6] v)
            => (double[B,3,4,6] y) {{ {PRODUCT} y = MatMul(u, v) }}""",
        {},
    )
    if keys == values:
        assert result.ops == ["FlashAttention"]
    else:
        other = "keys" if keys == 1 else "values"
        assert result.reasons() == [f"axis 1 is 3 for queries, 1 for {other}"]
    same(result, FEEDS | {"k": K[:, :keys], "v": V[:, :values]}, list(FEEDS))
