"""Frequencies of position encodings are constants; numbers that only look like them are weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.weights.parameters import Decision, decide
from training.small import model_of, normal

WEIGHTS = {
    "w": normal(4, 4),
    "column": normal(1, 4),
    "f": np.array([1.0, 0.1, 0.01, 0.001], np.float32),
    "step": np.float32(0.02),
    "zero": np.uint8(3),
}
REASON = "frequencies of a position encoding"


def decision_on_f(angles: str) -> Decision:
    """The decision on tensor ``f`` where ``angles`` says how ``a`` is made of it."""
    body = f"""(float[N,4] x, int64[N] p) => (float[N,4] y) {{
        last = Constant<value_ints=[1]>()
        counted = Cast<to=1>(p) standing = Unsqueeze(counted, last)
        m = MatMul(x, w) {angles} s = Sin(a) c = Cos(a)
        ms = Mul(m, s) mc = Mul(m, c) y = Add(ms, mc)
    }}"""
    found = decide(prepare(ir.from_proto(model_of(body, WEIGHTS))))
    return next(d for d in found if d.name == "f")


@pytest.mark.parametrize(
    "angles",
    [
        "a = Mul(standing, f)",
        "g = Identity(f) t = Mul(g, standing) a = Concat<axis=-1>(t)",
        "row = Constant<value_ints=[0]>() r = Unsqueeze(f, row) a = MatMul(standing, r)",
        "g = Cast<to=11>(f) q = Cast<to=11>(standing) t = Mul(q, g) a = Cast<to=1>(t)",
        "fq = QuantizeLinear(f, step, zero) fd = DequantizeLinear(fq, step, zero) "
        "pq = QuantizeLinear(standing, step, zero) pd = DequantizeLinear(pq, step, zero) "
        "t = Mul(pd, fd) tq = QuantizeLinear(t, step, zero) a = DequantizeLinear(tq, step, zero)",
    ],
)
def test_what_turns_positions_into_angles_is_not_trained(angles: str) -> None:
    found = decision_on_f(angles)
    assert (found.trained, found.reason, found.possible) == (False, REASON, True)


@pytest.mark.parametrize(
    "angles",
    [
        "a = Mul(x, f)",  # a layer whose activation is a sine
        "t = Mul(x, column) a = Mul(t, f)",
        "a = Add(standing, f)",  # a phase
        "t = Mul(standing, f) a = Tanh(t)",
    ],
)
def test_what_meets_data_is_a_weight(angles: str) -> None:
    assert decision_on_f(angles).trained


def test_what_is_used_elsewhere_too_is_a_weight() -> None:
    body = """(float[N,4] x) => (float[N,4] y) {
        p = Constant<value_float=3.0>() a = Mul(p, f) s = Sin(a) t = Mul(x, s) y = Mul(t, f)
    }"""
    found = decide(prepare(ir.from_proto(model_of(body, WEIGHTS))))
    assert next(d for d in found if d.name == "f").trained


def test_long_chains_of_products_are_looked_at_once() -> None:
    depth = 1200
    chain = " ".join(f"x{i + 1} = MatMul(x{i}, w{i})" for i in range(depth))
    body = f"(float[N,4] x0) => (float[N,4] y) {{ {chain} y = Sin(x{depth}) }}"
    model = model_of(body, {f"w{i}": WEIGHTS["w"] for i in range(depth)})
    found = decide(prepare(ir.from_proto(model)))
    assert len(found) == depth and all(d.trained for d in found)
