"""Gelu, exact and by tanh, in the ways in which it is written."""

from __future__ import annotations

import math

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import fused, same

X = 3 * normal(2, 5, seed=1, dtype=np.float64)
ROOT = repr(math.sqrt(2 / math.pi))
NUMBERS = {
    "half": np.float64(0.5),
    "one": np.float64(1),
    "two": np.float64(2),
    "three": np.float64(3),
    "few": np.float64(0.044715),
    "root": np.float64(math.sqrt(2 / math.pi)),
    "root_few": np.float64(math.sqrt(2 / math.pi) * 0.044715),
    "sqrt_two": np.float64(math.sqrt(2)),
    "sqrt_half": np.array([math.sqrt(0.5)]),
}


def model(nodes: str, outputs: str = "double[N,5] y", **options):
    used = {name: value for name, value in NUMBERS.items() if name in nodes}
    return fused(f"(double[N,5] x) => ({outputs}) {{ {nodes} }}", used, **options)


TANH = {
    "pow": "a = Pow(x, three) b = Mul(few, a) c = Add(x, b) d = Mul(root, c)",
    "product": "a = Mul(x, x) b = Mul(a, x) e = Mul(b, few) c = Add(e, x) d = Mul(c, root)",
    "factored": "a = Mul(x, x) b = Mul(few, a) c = Add(one, b) e = Mul(x, c) d = Mul(e, root)",
    "expanded": "a = Pow(x, three) b = Mul(a, root_few) c = Mul(x, root) d = Add(c, b)",
}
ERF = {
    "quotient": "d = Div(x, sqrt_two)",
    "product": "d = Mul(x, sqrt_half)",
}
OUTER = {
    "first": "h = Mul(x, half) y = Mul(h, g)",
    "second": "h = Mul(x, g) y = Mul(h, half)",
    "last": "h = Mul(half, g) y = Mul(x, h)",
    "quotient": "h = Div(x, two) y = Mul(g, h)",
}


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", TANH)
def test_the_approximation_is_found_however_it_is_written(inner: str, outer: str) -> None:
    result = model(f"{TANH[inner]} f = Tanh(d) g = Add(f, one) {OUTER[outer]}")
    assert result.ops == ["Gelu"] and result.report.count("Gelu") == 1
    assert result.node("Gelu").attributes.get_string("approximate") == "tanh"
    same(result, {"x": X}, ["x"])


@pytest.mark.parametrize("outer", OUTER)
def test_a_one_that_adds_dimensions_keeps_the_nodes(outer: str) -> None:
    nodes = f"{ERF['quotient']} f = Erf(d) g = Add(f, one) {OUTER[outer]}"
    used = {**NUMBERS, "one": np.ones((1, 1, 1))}
    used = {name: value for name, value in used.items() if name in nodes}
    result = fused(f"(double[N,5] x) => (double[1,N,5] y) {{ {nodes} }}", used)
    assert result.report.count("Gelu") == 0
    same(result, {"x": X}, ["x"])


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", ERF)
def test_the_exact_function_is_found_however_it_is_written(inner: str, outer: str) -> None:
    result = model(f"{ERF[inner]} f = Erf(d) g = Add(one, f) {OUTER[outer]}")
    assert result.ops == ["Gelu"]
    same(result, {"x": X}, ["x"])


def test_older_opsets_get_the_operators_of_com_microsoft() -> None:
    exact = model(f"{ERF['quotient']} f = Erf(d) g = Add(one, f) {OUTER['first']}", opset=14)
    tanh = model(f"{TANH['pow']} f = Tanh(d) g = Add(f, one) {OUTER['first']}", opset=14)
    assert (exact.ops, tanh.ops) == (["Gelu"], ["FastGelu"])
    assert {exact.node("Gelu").domain, tanh.node("FastGelu").domain} == {"com.microsoft"}
    same(exact, {"x": X}, ["x"])
    same(tanh, {"x": X}, ["x"])


def test_what_it_is_of_may_be_a_product_with_a_number_itself() -> None:
    result = model(
        "z = Mul(x, three) d = Div(z, sqrt_two) f = Erf(d) g = Add(f, one) h = Mul(z, half) "
        "y = Mul(h, g)"
    )
    assert result.ops == ["Mul", "Gelu"]
    same(result, {"x": X}, ["x"])


def test_a_gate_behind_it_is_none_of_it() -> None:
    result = model(f"{ERF['quotient']} f = Erf(d) g = Add(one, f) h = Mul(x, g) i = Mul(h, half) "
                   "y = Mul(i, x)")  # fmt: skip
    assert result.ops == ["Gated"] and result.report.count("Gelu") == 1
    same(result, {"x": X}, ["x"])


def test_other_numbers_are_refused_with_the_difference() -> None:
    result = model(f"d = Mul(x, half) f = Erf(d) g = Add(one, f) {OUTER['first']}")
    assert "Gelu" not in result.ops
    assert result.reasons() == ["Erf is of 0.5·x^1, not 0.707107·x^1"]


def test_a_factor_that_is_not_a_half_is_refused() -> None:
    result = model(f"{ERF['quotient']} f = Erf(d) g = Add(one, f) h = Mul(x, two) y = Mul(h, g)")
    assert result.reasons() == ["the product has a factor of 2, not 0.5"]


def test_what_others_read_is_kept() -> None:
    nodes = f"{TANH['pow']} f = Tanh(d) g = Add(f, one) {OUTER['first']}"
    shown = model(nodes, "double[N,5] y, double[N,5] g")
    assert "Gelu" not in shown.ops and shown.report.missed == []
    read = model(f"{nodes} z = Relu(d)", "double[N,5] y, double[N,5] z")
    assert read.reasons() == ["'d' is read by node 'Relu_z' (Relu) too"]


def test_a_tanh_alone_is_nothing_alike() -> None:
    result = model("f = Tanh(x) g = Add(f, one) y = Mul(g, three)")
    assert result.report.fused == result.report.missed == []


def test_numbers_that_are_trained_are_no_constants() -> None:
    result = model(
        f"{ERF['quotient']} f = Erf(d) g = Add(one, f) {OUTER['first']}", trained=["sqrt_two"]
    )
    assert "Erf" in result.ops
