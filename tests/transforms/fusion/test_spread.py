"""Layer and RMS normalization as TensorFlow writes them: a factor and a shift for the data."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

X = normal(3, 4, 6, seed=1, dtype=np.float64)
WEIGHTS = {
    "scale": 1 + normal(6, seed=2, dtype=np.float64),
    "bias": normal(6, seed=3, dtype=np.float64),
    "whole": 1 + normal(1, 1, 6, seed=2, dtype=np.float64),
    "shift": normal(1, 1, 6, seed=3, dtype=np.float64),
    "rows": normal(4, 1, seed=4, dtype=np.float64),
    "eps": np.float64(2.0**-10),
    "one": np.float64(1),
    "last": np.array([-1]),
}
DEVIATION = {
    "mean": "m = ReduceMean(x, last) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, last)",
    "pool": "m = GlobalAveragePool(x) d = Sub(x, m) q = Mul(d, d) v = GlobalAveragePool(q)",
}
ROOT = "e = Add(v, eps) s = Sqrt(e) r = Reciprocal(s)"
OVER = "e = Add(v, eps) s = Sqrt(e) r = Div(one, s)"
SPREAD = {
    "shift less mean": "p = Mul(x, f) t = Mul(m, f) b = Sub(bias, t) y = Add(p, b)",
    "shift first": "t = Mul(m, f) b = Sub(bias, t) p = Mul(f, x) y = Add(b, p)",
    "negated": "n = Neg(m) p = Mul(x, f) t = Mul(n, f) b = Add(t, bias) y = Add(p, b)",
    "bias behind": "p = Mul(x, f) t = Mul(m, f) b = Sub(p, t) y = Add(b, bias)",
    "negated, bias behind": "n = Neg(m) p = Mul(x, f) t = Mul(n, f) b = Add(p, t) y = Add(bias, b)",
    "deviation": "p = Mul(d, f) y = Add(p, bias)",
}


def model(nodes: str, **options) -> Result:
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in WEIGHTS.items() if name in words}
    body = f"(double[B,4,6] x) => (double[B,4,6] y) {{ {nodes} }}"
    trained = {"scale", "bias", "whole", "shift", "rows"} & used.keys()
    return fused(body, used, trained=sorted(trained), **options)


@pytest.mark.parametrize("spread", SPREAD)
@pytest.mark.parametrize("deviation", DEVIATION)
@pytest.mark.parametrize("root", [ROOT, OVER])
def test_layer_normalization_is_found(deviation: str, root: str, spread: str) -> None:
    result = model(f"{DEVIATION[deviation]} {root} f = Mul(r, scale) {SPREAD[spread]}")
    assert result.ops == ["LayerNormalization"]
    node = result.node("LayerNormalization")
    assert [value.name for value in node.inputs] == ["x", "scale", "bias"]
    assert node.attributes.get_int("axis") == -1
    same(result, {"x": X}, ["x", "scale", "bias"])


@pytest.mark.parametrize("spread", SPREAD)
def test_axes_of_one_element_in_front_of_scale_and_bias_are_taken_off(spread: str) -> None:
    text = f"{DEVIATION['pool']} {ROOT} f = Mul(r, whole) {SPREAD[spread]}".replace("bias", "shift")
    result = model(text)
    assert result.ops == ["Reshape", "Reshape", "LayerNormalization"]
    same(result, {"x": X}, ["x", "whole", "shift"])


@pytest.mark.parametrize("spread", sorted(SPREAD.keys() - {"deviation"}))
def test_without_a_scale_there_are_ones(spread: str) -> None:
    result = model(f"{DEVIATION['mean']} {ROOT} f = Identity(r) {SPREAD[spread]}")
    assert result.ops == ["LayerNormalization"]
    same(result, {"x": X}, ["x", "bias"])


def test_rms_normalization_is_found() -> None:
    result = model(f"q = Mul(x, x) v = GlobalAveragePool(q) {ROOT} f = Mul(r, scale) y = Mul(x, f)")
    assert result.ops == ["SimplifiedLayerNormalization"]
    same(result, {"x": X}, ["x", "scale"])


def test_an_image_is_pooled_over_two_axes() -> None:
    body = f"{DEVIATION['pool']} {ROOT} p = Mul(x, r) t = Mul(m, r) y = Sub(p, t)"
    result = fused(
        f"(double[B,2,4,6] x) => (double[B,2,4,6] y) {{ {body} }}", {"eps": WEIGHTS["eps"]}
    )
    assert result.node("LayerNormalization").attributes.get_int("axis") == -2
    same(result, {"x": normal(3, 2, 4, 6, dtype=np.float64)}, ["x"])


@pytest.mark.parametrize(
    "spread",
    [
        "p = Mul(x, f) t = Mul(m, f) b = Add(bias, t) y = Add(p, b)",
        "p = Mul(x, f) t = Mul(m, f) b = Sub(t, bias) y = Add(p, b)",
        "n = Neg(m) p = Mul(x, f) t = Mul(n, f) b = Sub(bias, t) y = Add(p, b)",
        "n = Neg(m) p = Mul(x, f) t = Mul(n, f) y = Sub(p, t)",
        "p = Mul(x, f) t = Mul(m, f) y = Sub(t, p)",
        "p = Mul(x, f) t = Mul(m, f) y = Add(t, p)",
        "p = Mul(x, f) t = Mul(m, f) b = Sub(rows, t) y = Add(p, b)",
        "p = Mul(x, f) t = Mul(m, f) b = Sub(bias, t) y = Sub(p, b)",
        "p = Mul(x, f) t = Mul(x, f) y = Sub(p, t)",
        "p = Mul(x, f) t = Mul(m, f) a = Sub(p, t) y = Mul(a, f)",
    ],
)
def test_what_is_none_stays_as_it_is(spread: str) -> None:
    result = model(f"{DEVIATION['mean']} {ROOT} f = Mul(r, scale) {spread}")
    assert "LayerNormalization" not in result.ops
    same(result, {"x": X}, ["x", "scale"])


def test_a_mean_that_somebody_else_reads_is_refused() -> None:
    nodes = f"{DEVIATION['mean']} {ROOT} f = Mul(r, scale) {SPREAD['bias behind']}"
    body = f"(double[B,4,6] x) => (double[B,4,6] y, double[B,4,1] m) {{ {nodes} }}"
    used = {name: WEIGHTS[name] for name in ("scale", "bias", "eps", "last")}
    result = fused(body, used, trained=["scale", "bias"])
    assert "'m' is an output of the model" in result.reasons()
    same(result, {"x": X}, ["x", "scale", "bias"])
