"""Attention whose samples and heads are one axis for a while."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxtrain.transforms.fusion.regrouped import is_together
from training.small import normal
from transforms.fusion.attended import FEEDS, INPUTS, NUMBERS, TURNED, B, D, H, S, T, model
from transforms.fusion.compare import fused, run, same

FLAT = (
    "a = Reshape(q, queries) b = Reshape(k, flat) t = Transpose<perm=[0,2,1]>(b) p = MatMul(a, t)"
)
FIXED = INPUTS.replace("B", "2")
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
    result = model(nodes, f", {given}", "double[2,3,4,6] y", qkv=FIXED)
    assert result.report.count("FlashAttention") == 1
    c = np.random.default_rng(5).random((6, T, S)) < 0.5
    c[0, 1] = False
    extra = {"c": c} if condition else {"m": normal(6, 1, S, seed=9, dtype=np.float64)}
    same(result, FEEDS | extra, [*FEEDS, *([] if condition else ["m"])])


def test_masks_of_which_only_a_run_knows_the_heads_are_left_alone() -> None:
    nodes = f"{FLAT} s = Add(p, m) o = Reshape(s, scores) w = Softmax(o) y = MatMul(w, v)"
    result = model(nodes, ", double[N,1,5] m")
    assert result.reasons() == ["only a run can tell whether a mask has a matrix for each head"]


def test_heads_that_were_never_apart_are_left_alone() -> None:
    words = {"scores": NUMBERS["scores"]}
    result = fused(
        """(double[6,4,8] q, double[6,8,5] k, double[B,3,5,6] v) => (double[B,3,4,6] y) {
            p = MatMul(q, k) s = Reshape(p, scores) w = Softmax(s) y = MatMul(w, v)
        }""",
        words,
    )
    assert result.reasons() == ["samples and heads of 'q' were never apart"]


PRODUCTS = f"{FLAT} w = Softmax(p) u = Reshape(v, values) z = MatMul(w, u)"


@pytest.mark.parametrize("shape", [(3, 2, T, 6), (1, 6, T, 6), (6, 1, T, 6), (2, 3, 6, T)])
def test_a_result_that_is_divided_otherwise_stays_so(shape: tuple[int, ...]) -> None:
    result = model(
        f"{PRODUCTS} y = Reshape(z, other)",
        outputs=f"double[{','.join(map(str, shape))}] y",
        qkv=FIXED,
        other=np.array(shape),
    )
    assert result.ops == ["FlashAttention", "Reshape", "Reshape"]
    (y,) = run(result.after, FEEDS)
    assert y.shape == shape
    same(result, FEEDS, list(FEEDS))


@pytest.mark.parametrize("lead", [(3, 2), (1, 6), (6, 1)])
def test_scores_that_are_divided_otherwise_are_left_alone(lead: tuple[int, int]) -> None:
    samples, heads = lead
    result = model(
        f"""{FLAT} o = Reshape(p, other) n = Add(o, m) s = Reshape(n, weights) w = Softmax(s)
        u = Reshape(v, values) z = MatMul(w, u) y = Reshape(z, heads)""",
        f", double[{samples},{heads},1,5] m",
        qkv=FIXED,
        other=np.array([samples, heads, T, S]),
    )
    assert result.reasons() == ["samples and heads may be divided in different ways"]


BACK = "u = Reshape(v, values) z = MatMul(w, u) y = Reshape(z, heads)"
OTHERWISE = {
    "matrices": (
        f"{FLAT} o = Reshape(p, other) n = Add(o, m) s = Reshape(n, weights) w = Softmax(s) {BACK}",
        (2, 3, S, T),
        "Reshape 'Reshape_s' stands between the product and Softmax",
    ),
    "rows": (
        f"{FLAT} o = Reshape(p, other) n = Add(o, m) s = Reshape(n, weights) w = Softmax(s) {BACK}",
        (1, 3, 2 * T, S),
        "Reshape 'Reshape_s' stands between the product and Softmax",
    ),
    "samples and heads": (
        f"{TURNED} p = MatMul(q, t) o = Reshape(p, other) n = Add(o, m) "
        f"s = Reshape(n, weights) w = Softmax(s) {BACK}",
        (3, 2, T, S),
        "Reshape 'Reshape_o' stands between the product and Softmax",
    ),
    "one mask more": (
        f"{FLAT} s = Add(p, m) r = Softmax(s) w = Reshape(r, weights) {BACK}",
        (1, 6, T, S),
        "the mask of 'Add_s' (Add) is larger than the scores",
    ),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_what_does_more_than_to_make_one_axis_of_two_is_left_alone(what: str) -> None:
    nodes, shape, reason = OTHERWISE[what]
    mask = f", double[{','.join(map(str, shape))}] m" if " m)" in nodes else ""
    result = model(nodes, mask, qkv=FIXED, other=np.array(shape))
    assert "FlashAttention" not in result.ops
    assert result.reasons() == [reason]


def test_samples_that_are_the_same_tell_that_heads_are() -> None:
    qkv = "double[2,A,4,8] q, double[2,F,5,8] k, double[2,G,5,6] v"
    result = model(f"{PRODUCTS} y = Identity(z)", outputs="double[N,4,6] y", qkv=qkv)
    assert result.ops == ["FlashAttention", "Reshape", "Identity"]
    same(result, FEEDS, list(FEEDS))


NAMED = {
    "queries": ("double[A,F,4,8] q, double[C,G,5,8] k, double[C,G,5,6] v", (3, 2), (2, 3), (2, 3)),
    "keys": ("double[A,F,4,8] q, double[C,G,5,8] k, double[A,F,5,6] v", (2, 3), (6, 1), (2, 3)),
    "values": ("double[A,F,4,8] q, double[A,F,5,8] k, double[C,G,5,6] v", (2, 3), (2, 3), (1, 6)),
    "crosswise": (
        *("double[A,F,4,8] q, double[A,G,5,8] k, double[C,F,5,6] v", (1, 6), (1, 6), (1, 6)),
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_operands_that_may_be_divided_otherwise_are_one_axis(name: str) -> None:
    qkv, *leads = NAMED[name]
    result = model(f"{PRODUCTS} y = Identity(z)", outputs="double[N,4,6] y", qkv=qkv)
    assert result.ops[-3:] == ["FlashAttention", "Squeeze", "Identity"]
    feeds = {key: FEEDS[key].reshape(*lead, *FEEDS[key].shape[2:])
             for key, lead in zip(FEEDS, leads, strict=True)}  # fmt: skip
    same(result, feeds, list(feeds))


def test_queries_of_another_form_are_one_axis() -> None:
    qkv = FIXED.replace("double[2,3,4,8] q", "double[2,3,8,4] q")
    result = model(f"{PRODUCTS} y = Identity(z)", outputs="double[6,4,6] y", qkv=qkv)
    assert result.ops[-3:] == ["FlashAttention", "Squeeze", "Identity"]
    feeds = FEEDS | {"q": FEEDS["q"].reshape(B, H, D, T)}
    same(result, feeds, list(feeds))


def test_keys_that_are_turned_with_samples_and_heads_are_one_axis() -> None:
    """[keys, sample · head, size], whose keys were made of two axes."""
    result = model(
        """a = Reshape(q, queries) b = Reshape(k, six) t = Transpose<perm=[1,2,0]>(b)
        p = MatMul(a, t) w = Softmax(p) u = Reshape(v, values) y = MatMul(w, u)""",
        outputs="double[N,4,6] y",
        qkv="double[2,3,4,8] q, double[5,3,6,8] k, double[2,3,15,6] v",
        six=np.array([-1, 6, D]),
        values=np.array([-1, 15, 6]),
    )
    assert result.ops[-2:] == ["FlashAttention", "Squeeze"]
    k, v = normal(5, 3, 6, D, seed=4), normal(B, H, 15, 6, seed=5)
    feeds = {"q": FEEDS["q"], "k": k.astype(np.float64), "v": v.astype(np.float64)}
    same(result, feeds, list(feeds))


def test_matrices_that_are_repeated_for_samples_are_left_alone() -> None:
    """Queries have one axis for samples and heads, and another one in front in the product."""
    result = model(
        f"a = Reshape(q, queries) {TURNED} p = MatMul(a, t) w = Softmax(p) y = MatMul(w, v)",
        outputs="double[C,N,4,6] y",
        qkv="double[A,F,4,8] q, double[C,F,5,8] k, double[C,F,5,6] v",
    )
    assert result.reasons() == ["queries, keys and values have ranks [3, 4, 4], not all 3 or all 4"]
    result = model(
        f"""{FLAT} o = Reshape(p, scores) w = Softmax(o) d = Reshape(w, weights)
        y = MatMul(d, v)""",
        outputs="double[B,N,4,6] y",
        qkv="double[A,3,4,8] q, double[A,3,5,8] k, double[B,3,5,6] v",
    )
    assert result.reasons() == ["'MatMul_y' (MatMul) is of values of ranks [3, 4]"]


MATRICES = [
    ([6, 1, 5], [6, 4, 5], True),
    (["N", 4, 5], ["N", 4, 5], True),
    (["M", 4, 5], ["N", 4, 5], None),
    ([6, 4, 5], ["N", 4, 5], None),
    (None, [6, 4, 5], None),
    ([1, 4, 5], [6, 4, 5], False),
    ([6, 5], [6, 4, 5], False),
    ([3, 4, 5], [2, 3, 4, 5], False),
    ([3, 4, 5], [3, 3, 4, 5], False),
]


@pytest.mark.parametrize(("mask", "scores", "found"), MATRICES)
def test_masks_that_have_a_matrix_for_each_head_of_each_sample(mask, scores, found) -> None:
    values = [ir.Value(shape=None if dims is None else ir.Shape(dims)) for dims in (mask, scores)]
    assert is_together(*values) is found


def test_masks_of_all_samples_and_of_each_head_fit_both_forms() -> None:
    nodes = f"""{FLAT} r = Add(p, m) o = Reshape(r, scores) s = Add(o, n) w = Softmax(s)
        y = MatMul(w, v)"""
    result = model(nodes, ", double[1,4,5] m, double[3,1,5] n")
    assert result.ops == ["Add", "FlashAttention"]
    masks = {"m": normal(1, T, S, seed=8), "n": normal(H, 1, S, seed=9)}
    feeds = FEEDS | {name: mask.astype(np.float64) for name, mask in masks.items()}
    same(result, feeds, list(feeds))


@pytest.mark.parametrize(("queries", "matrices"), [(T, -1), (T, B * H), (0, B * H)])
def test_a_result_of_any_length_stays_one_axis(queries: int, matrices: int) -> None:
    sizes = [f"s{x} = Shape<start=2>({x}) f{x} = Concat<axis=0>(rest, s{x})" for x in "qkv"]
    result = model(
        f"""{" ".join(sizes)} a = Reshape<allowzero=1>(q, fq) b = Reshape(k, fk) u = Reshape(v, fv)
        t = Transpose<perm=[0,2,1]>(b) p = MatMul(a, t) w = Softmax(p) y = MatMul(w, u)""",
        outputs="double[N,T,6] y",
        qkv="double[B,3,T,8] q, double[B,3,S,8] k, double[B,3,S,6] v",
        rest=np.array([matrices]),
    )
    assert result.ops.count("FlashAttention") == 1 and result.ops[-1] == "Reshape"
    assert "Squeeze" not in result.ops
    feeds = FEEDS | {"q": FEEDS["q"][:, :, :queries]}
    same(result, feeds, list(feeds))


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
