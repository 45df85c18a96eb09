"""Layer and RMS normalization."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

X = normal(3, 4, 6, seed=1, dtype=np.float64)
WEIGHTS = {
    "scale": 1 + normal(6, seed=2, dtype=np.float64),
    "bias": normal(6, seed=3, dtype=np.float64),
    "plane": 1 + normal(4, 6, seed=4, dtype=np.float64),
    "eps": np.float64(2.0**-10),
    "two": np.float64(2),
    "one": np.float64(1),
    "half": np.float64(0.5),
    "last": np.array([-1]),
    "first": np.array([1]),
    "both": np.array([1, 2]),
}
CENTRED = {
    "pow": "m = ReduceMean(x, last) d = Sub(x, m) q = Pow(d, two) v = ReduceMean(q, last)",
    "mul": "m = ReduceMean(x, last) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, last)",
}
PLAIN = {
    "pow": "d = Identity(x) q = Pow(x, two) v = ReduceMean(q, last)",
    "mul": "d = Identity(x) q = Mul(x, x) v = ReduceMean(q, last)",
}
DIVIDED = {
    "div": "e = Add(v, eps) s = Sqrt(e) n = Div(d, s)",
    "reciprocal": "e = Add(eps, v) s = Sqrt(e) r = Reciprocal(s) n = Mul(d, r)",
    "one over": "e = Add(v, eps) s = Sqrt(e) r = Div(one, s) n = Mul(r, d)",
}


def model(nodes: str, trained: tuple[str, ...] = ("scale", "bias", "plane"), **options) -> Result:
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in WEIGHTS.items() if name in words}
    body = f"(double[B,4,6] x) => (double[B,4,6] y) {{ {nodes} }}"
    return fused(body, used, trained=[n for n in trained if n in used], **options)


@pytest.mark.parametrize("divided", DIVIDED)
@pytest.mark.parametrize("centred", CENTRED)
def test_layer_normalization_is_found_however_it_is_written(centred: str, divided: str) -> None:
    result = model(f"{CENTRED[centred]} {DIVIDED[divided]} a = Mul(n, scale) y = Add(bias, a)")
    assert result.ops == ["LayerNormalization"]
    node = result.node("LayerNormalization")
    assert [value.name for value in node.inputs] == ["x", "scale", "bias"]
    assert node.attributes.get_float("epsilon") == 2.0**-10
    same(result, {"x": X}, ["x", "scale", "bias"])


@pytest.mark.parametrize("divided", DIVIDED)
@pytest.mark.parametrize("plain", PLAIN)
def test_rms_normalization_is_found_however_it_is_written(plain: str, divided: str) -> None:
    result = model(f"{PLAIN[plain]} {DIVIDED[divided]} y = Mul(scale, n)")
    assert result.ops == ["SimplifiedLayerNormalization"]
    assert result.report.count("RMSNormalization") == 1
    same(result, {"x": X}, ["x", "scale"])


def test_a_deviation_that_is_computed_twice_is_one() -> None:
    result = model(
        "m = ReduceMean(x, last) c = Sub(x, m) q = Mul(c, c) v = ReduceMean(q, last) "
        f"d = Sub(x, m) {DIVIDED['div']} a = Mul(n, scale) y = Add(a, bias)"
    )
    assert result.ops == ["LayerNormalization"]
    same(result, {"x": X}, ["x", "scale", "bias"])


def test_several_axes_are_normalized_together() -> None:
    nodes = f"{PLAIN['mul']} {DIVIDED['div']} y = Mul(n, plane)".replace("last", "both")
    result = model(nodes)
    assert result.node("SimplifiedLayerNormalization").attributes.get_int("axis") == -2
    same(result, {"x": X}, ["x", "plane"])


def test_without_a_scale_there_are_ones() -> None:
    result = model(f"{PLAIN['mul']} {DIVIDED['div']} y = Relu(n)")
    assert result.ops == ["SimplifiedLayerNormalization", "Relu"]
    same(result, {"x": X}, ["x"])


def test_a_scale_along_other_axes_stays_outside() -> None:
    result = model(f"{PLAIN['mul']} {DIVIDED['div']} y = Mul(n, plane)")
    assert result.ops == ["SimplifiedLayerNormalization", "Mul"]
    same(result, {"x": X}, ["x", "plane"])


def test_older_opsets_have_axes_as_attributes() -> None:
    nodes = f"{CENTRED['pow']} {DIVIDED['div']} a = Mul(n, scale) y = Add(a, bias)"
    nodes = nodes.replace("ReduceMean(x, last)", "ReduceMean<axes=[-1]>(x)")
    result = model(nodes.replace("ReduceMean(q, last)", "ReduceMean<axes=[2]>(q)"), opset=11)
    assert result.ops == ["LayerNormalization"]
    same(result, {"x": X}, ["x", "scale", "bias"])


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (
            f"{PLAIN['mul']} {DIVIDED['div']} y = Mul(n, scale)".replace("last", "first"),
            "the mean is over axes [-2], not over the last ones",
        ),
        (
            "q = Mul(x, x) k = ReduceMean<keepdims=0>(q, last) e = Add(k, eps) s = Sqrt(e) "
            "r = Reciprocal(s) l = Unsqueeze(r, last) y = Mul(x, l)",
            "'ReduceMean_k' (ReduceMean) drops the axes that it is over",
        ),
        (
            f"{PLAIN['mul']} {DIVIDED['div']} z = Mul(n, scale) y = Mul(z, q)",
            "'q' is read by node 'Mul_y' (Mul) too",
        ),
    ],
)
def test_what_is_nearly_one_is_refused(nodes: str, reason: str) -> None:
    result = model(nodes)
    assert reason in result.reasons()
    assert not {"LayerNormalization", "SimplifiedLayerNormalization"} & set(result.ops)


@pytest.mark.parametrize("name", ["two", "eps", "one"])
def test_a_number_that_adds_dimensions_keeps_the_nodes(name: str) -> None:
    nodes = f"{CENTRED['pow']} {DIVIDED['one over']} y = Mul(n, scale)"
    used = {key: WEIGHTS[key] for key in ("two", "eps", "one", "last", "scale")}
    used[name] = used[name].reshape(1, 1, 1, 1)
    body = f"(double[B,4,6] x) => (double[1,B,4,6] y) {{ {nodes} }}"
    result = fused(body, used, trained=["scale"])
    assert (
        result.reasons() == ["a number of more dimensions than the data adds dimensions to it"] * 2
    )
    same(result, {"x": X}, ["x", "scale"])


@pytest.mark.parametrize(
    "nodes",
    [
        f"q = Pow(x, half) v = ReduceMean(q, last) d = Identity(x) {DIVIDED['div']} y = Relu(n)",
        "s = Sqrt(x) y = Div(x, s)",
        f"q = Mul(x, x) v = ReduceMean(q, last) d = Relu(x) {DIVIDED['div']} y = Relu(n)",
    ],
)
def test_other_roots_are_nothing_alike(nodes: str) -> None:
    result = model(nodes)
    assert result.report.fused == result.report.missed == []


def test_casts_around_a_normalization_in_float_are_left_out() -> None:
    result = fused(
        """(bfloat16[B,6] x, bfloat16[6] scale) => (bfloat16[B,6] y) {
            f = Cast<to=1>(x)
            q = Mul(f, f) v = ReduceMean(q, last) e = Add(v, eps) s = Sqrt(e) r = Reciprocal(s)
            n = Mul(f, r) c = Cast<to=16>(n) y = Mul(scale, c)
        }""",
        {"last": np.array([-1]), "eps": np.float32(1e-5)},
    )
    assert result.ops == ["SimplifiedLayerNormalization"]
    assert [v.name for v in result.node("SimplifiedLayerNormalization").inputs] == ["x", "scale"]
