"""Products of whole numbers have the gradients of the same products in dequantized numbers."""

from __future__ import annotations

import numpy as np
import pytest

from gradients.emit import differentiated, run

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(2, 3, 4)).astype(np.float32)
IMAGE = GENERATOR.normal(size=(2, 2, 5, 5)).astype(np.float32)
DYNAMIC = "q, s, z = DynamicQuantizeLinear(x)"
STATIC = "q = QuantizeLinear(x, s, z)"
WEIGHT = "<uint8[4,2] w = {9, 200, 31, 140, 7, 99, 180, 64}, uint8 v = {120}, float t = {0.01}>"
ROWS = {
    "plain": (
        "(float[2,3,4] x) => (float[2,3,2] y) " + WEIGHT,
        "i = MatMulInteger(q, w, z, v) r = Cast<to=1>(i) k = Mul(s, t) y = Mul(r, k)",
        "a = DequantizeLinear(q, s, z) b = DequantizeLinear(w, t, v) y = MatMul(a, b)",
    ),
    "one zero point per column": (
        "(float[2,3,4] x) => (float[2,3,2] y) "
        "<int8[4,2] w = {9, 20, -31, 14, 7, -99, 18, 64}, int8[2] v = {12, -3}, float t = {0.01}>",
        "i = MatMulInteger(q, w, z, v) r = Cast<to=1>(i) k = Mul(s, t) y = Mul(r, k)",
        "u = Constant<value_floats=[0.01, 0.01]>() a = DequantizeLinear(q, s, z) "
        "b = DequantizeLinear<axis=1>(w, u, v) y = MatMul(a, b)",
    ),
    "with itself": (
        "(float[2,3,4] x) => (float[2,3,3] y)",
        "p = Transpose<perm=[0,2,1]>(x) f, g, h = DynamicQuantizeLinear(p) "
        "i = MatMulInteger(q, f, z, h) r = Cast<to=1>(i) k = Mul(s, g) y = Mul(r, k)",
        "p = Transpose<perm=[0,2,1]>(x) f, g, h = DynamicQuantizeLinear(p) "
        "a = DequantizeLinear(q, s, z) b = DequantizeLinear(f, g, h) y = MatMul(a, b)",
    ),
    "convolution": (
        "(float[2,2,5,5] x) => (float[2,2,3,3] y) <uint8[2,1,2,2] w = "
        "{9, 200, 31, 140, 7, 99, 180, 64}, uint8 v = {120}, float t = {0.01}>",
        "i = ConvInteger<group=2, strides=[2,2], pads=[1,1,0,0]>(q, w, z, v) "
        "r = Cast<to=1>(i) k = Mul(s, t) y = Mul(r, k)",
        "a = DequantizeLinear(q, s, z) b = DequantizeLinear(w, t, v) "
        "y = Conv<group=2, strides=[2,2], pads=[1,1,0,0]>(a, b)",
    ),
    "fused": (
        "(float[2,3,4] x) => (float[2,3,2] y) " + WEIGHT,
        "y = com.microsoft.MatMulIntegerToFloat(q, w, s, t, z, v)",
        "a = DequantizeLinear(q, s, z) b = DequantizeLinear(w, t, v) y = MatMul(a, b)",
    ),
}


@pytest.mark.parametrize("kind", ROWS)
def test_the_same_as_dequantized(kind: str) -> None:
    ends, whole, real = ROWS[kind]
    x = IMAGE if kind == "convolution" else X
    found = []
    for nodes in (whole, real):
        model = differentiated(f"{ends} {{ {DYNAMIC} {nodes} }}")
        (d_y,) = (v for v in model.graph.inputs if v.name == "d_y")
        shape = [int(str(dim)) for dim in d_y.shape]
        incoming = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        found.append(run(model, x=x, d_y=incoming)["x_grad"])
    assert np.abs(found[0]).min() > 0 or kind == "convolution"
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_what_is_clipped_has_no_gradient() -> None:
    text = (
        "(float[1,2] x, float s) => (float[1,1] y) <uint8 z = {5}, uint8[2,1] w = {2, 3}> "
        f"{{ {STATIC} i = MatMulInteger(q, w, z) r = Cast<to=1>(i) y = Mul(r, s) }}"
    )
    x = np.float32([[1.3, -50000.0]])
    found = run(differentiated(text), x=x, s=np.float32(1), d_y=np.ones((1, 1), np.float32))
    assert found["x_grad"].tolist() == [[2, 0]]


def test_a_product_of_what_nobody_quantized_has_none() -> None:
    text = (
        "(uint8[1,2] q, float s) => (float[1,1] y) <uint8[2,1] w = {2, 3}> "
        "{ i = MatMulInteger(q, w) r = Cast<to=1>(i) y = Mul(r, s) }"
    )
    found = run(
        differentiated(text),
        q=np.uint8([[1, 2]]),
        s=np.float32(1),
        d_y=np.ones((1, 1), np.float32),
    )
    assert found["s_grad"].tolist() == 8
