"""Gradients of com.microsoft's operators where differences and autograd cannot tell."""

import numpy as np
import pytest

from gradients.emit import differentiated, emitted, run
from onnxtrain.errors import NoGradientError


def test_a_padding_row_is_not_trained() -> None:
    of = differentiated(
        "(float[4,2] w, int64[3] i) => (float[3,2] y) <int64[1] p = {2}> "
        "{ y = com.microsoft.TorchEmbedding(w, i, p) }",
        "w",
    )
    grad = run(of, w=np.zeros((4, 2), np.float32), i=[1, 2, 1], d_y=np.ones((3, 2), np.float32))
    assert grad["w_grad"].tolist() == [[0, 0], [2, 2], [0, 0], [0, 0]]


def test_the_gradient_of_a_row_is_divided_by_how_often_it_was_looked_up() -> None:
    of = differentiated(
        "(float[4,2] w, int64[2,2] i) => (float[2,2,2] y) <int64[1] p = {2}, bool f = {1}> "
        "{ y = com.microsoft.TorchEmbedding(w, i, p, f) }",
        "w",
    )
    dy = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    grad = run(of, w=np.zeros((4, 2), np.float32), i=[[1, 2], [1, 3]], d_y=dy)
    assert grad["w_grad"].tolist() == [[0, 0], [2, 3], [0, 0], [6, 7]]


def test_banned_tokens_pass_no_gradient_on() -> None:
    of = differentiated(
        "(int64[1,3] t, float[1,4] s) => (float[1,4] y) "
        "{ y = com.microsoft.NGramRepeatBlock <ngram_size = 2> (t, s) }"
    )
    grad = run(of, t=[[1, 2, 1]], s=np.ones((1, 4), np.float32), d_y=np.ones((1, 4), np.float32))
    assert grad["s_grad"].tolist() == [[1, 1, 0, 1]]


def test_repeated_elements_pass_their_gradient_to_the_first() -> None:
    of = differentiated(
        "(float[4] x) => (float[N] y, int64[4] i, int64[N] c) { y, i, c = com.microsoft.Unique(x) }"
    )
    found = run(of, x=np.array([2, 1, 2, 1], np.float32), d_y=np.array([3, 4], np.float32))
    assert found["x_grad"].tolist() == [3, 4, 0, 0]


def test_the_rounding_of_a_dynamic_product_is_passed_straight_through() -> None:
    of = differentiated(
        "(float[1,2] a, int8[2,2] b, float s) => (float[1,2] y) "
        "{ y = com.microsoft.DynamicQuantizeMatMul(a, b, s) }",
        "a",
    )
    b = np.array([[1, 2], [3, 4]], np.int8)
    a, s = np.array([[0.3, 0.7]], np.float32), np.float32(0.5)
    grad = run(of, a=a, b=b, s=s, d_y=np.array([[1, 10]], np.float32))
    assert grad["a_grad"].tolist() == [[10.5, 21.5]]


def test_the_gradient_of_a_quantized_lstm_is_that_of_one_with_real_weights() -> None:
    rng = np.random.default_rng(0)
    codes = {"w": rng.integers(0, 255, (1, 2, 12)), "r": rng.integers(0, 255, (1, 3, 12))}
    steps = {"w": 0.01, "r": 0.02}
    x, b = (rng.normal(size=s).astype(np.float32) for s in ((4, 2, 2), (1, 24)))
    seed = rng.normal(size=(4, 1, 2, 3)).astype(np.float32)
    quantized = differentiated(
        "(float[4,2,2] x, uint8[1,2,12] w, uint8[1,3,12] r, float[1,24] b, float[1] sw, "
        "uint8[1] z, float[1] sr) => (float[4,1,2,3] y) { y = com.microsoft.DynamicQuantizeLSTM "
        "<hidden_size = 3> (x, w, r, b, , , , , sw, z, sr, z) }"
    )
    real = differentiated(
        "(float[4,2,2] x, float[1,12,2] w, float[1,12,3] r, float[1,24] b) => "
        "(float[4,1,2,3] y) { y = LSTM <hidden_size = 3> (x, w, r, b) }"
    )
    scales = {f"s{n}": np.asarray([s], np.float32) for n, s in steps.items()}
    given = {n: c.astype(np.uint8) for n, c in codes.items()}
    found = run(quantized, x=x, b=b, z=np.asarray([128], np.uint8), d_y=seed, **given, **scales)
    weights = {n: ((c - 128) * steps[n]).mT.astype(np.float32) for n, c in codes.items()}
    want = run(real, x=x, b=b, d_y=seed, **weights)
    for name in ("x", "b"):
        np.testing.assert_allclose(found[f"{name}_grad"], want[f"{name}_grad"], atol=1e-5)
    for name, code in codes.items():
        slope = (want[f"{name}_grad"].mT * (code - 128)).sum()
        np.testing.assert_allclose(found[f"s{name}_grad"], [slope], rtol=1e-4)


def test_a_fused_convolution_is_not_computed_again() -> None:
    text = (
        "(float[N,2,4] x, float[3,2,2] w, float[3] b) => (float[N,3,3] y) "
        '{ y = com.microsoft.FusedConv <activation = "Relu"> (x, w, b) }'
    )
    assert [line.split("(")[0] for line in emitted(text)] == ["ms.ReluGrad", "ms.ConvGrad"]


def test_closed_places_have_no_gradient_and_the_first_of_those_that_tie_has_all() -> None:
    of = differentiated(
        "(float[1,1,6] x, int32[1,1,6] m) => (float[1,1,3] y) "
        "{ y = com.microsoft.MaxpoolWithMask <kernel_shape = [2], strides = [2]> (x, m) }"
    )
    x = np.asarray([[[2, 2, 1, 5, 3, 4]]], np.float32)
    mask = np.asarray([[[1, 1, 1, 0, 0, 1]]], np.int32)
    found = run(of, x=x, m=mask, d_y=np.asarray([[[7, 8, 9]]], np.float32))
    assert found["x_grad"].tolist() == [[[7, 0, 8, 0, 0, 0]]]


def test_padding_of_short_words_is_trained_and_what_is_no_word_is_not() -> None:
    of = differentiated(
        "(int32[W,3] s, float[1,1,2,1] w, float[1] b, float[3,1] c) => (float[W,1] y) "
        "{ y = com.microsoft.WordConvEmbedding(s, w, b, c) }"
    )
    weights = {"w": np.full((1, 1, 2, 1), 0.5), "b": np.zeros(1), "c": np.zeros((3, 1))}
    given = {name: value.astype(np.float32) for name, value in weights.items()}
    words = np.asarray([[2, 0, 0], [0, 1, 1]], np.int32)
    found = run(of, s=words, **given, d_y=np.asarray([[1], [8]], np.float32))
    assert found["c_grad"].tolist() == [[0.5], [0], [0.5]]
    assert found["b_grad"].tolist() == [1]


def test_angles_in_float_of_short_queries_have_a_gradient_in_float() -> None:
    short = "float16[1,2,3,4]"
    of = differentiated(
        f"(float[1,3,4] a, {short} q, {short} r, {short} k, {short} s) => ({short} y, {short} z) "
        "{ y, z = com.microsoft.GemmaRotaryEmbedding(a, q, r, k, s) }"
    )
    rng = np.random.default_rng(0)
    a = rng.normal(size=(1, 3, 4)).astype(np.float32)
    names = ("q", "r", "k", "s", "d_y", "d_z")
    x = {name: rng.normal(size=(1, 2, 3, 4)).astype(np.float16) for name in names}
    found = run(of, a=a, **x)
    q, r, k, s, dy, dz = (x[name].astype(np.float64) for name in names)
    cos, sin = np.cos(a.astype(np.float64)), np.sin(a.astype(np.float64))
    want = (dy * (r * cos - q * sin) + dz * (s * cos - k * sin)).sum(1)
    assert found["a_grad"].dtype == np.float32
    np.testing.assert_allclose(found["a_grad"], want, rtol=1e-5, atol=1e-5)
    assert found["r_grad"].dtype == np.float16
    np.testing.assert_allclose(found["r_grad"], dy * sin, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ('FusedGemm <activation = "Unheard"> (x, x)', "activation 'Unheard'"),
        ('FusedGemm <activation = "LeakyRelu", activation_alpha = -1.0> (x, x)', "LeakyRelu"),
        ("TorchEmbedding(x, i, , f)", "scale_grad_by_freq"),
    ],
)
def test_what_has_no_gradient_says_so(call: str, why: str) -> None:
    text = f"(float[2,2] x, int64[2] i, bool f) => (float[2,2] y) {{ y = com.microsoft.{call} }}"
    with pytest.raises(NoGradientError, match=why):
        differentiated(text, "x")
