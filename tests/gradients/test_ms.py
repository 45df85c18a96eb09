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


def test_a_fused_convolution_is_not_computed_again() -> None:
    text = (
        "(float[N,2,4] x, float[3,2,2] w, float[3] b) => (float[N,3,3] y) "
        '{ y = com.microsoft.FusedConv <activation = "Relu"> (x, w, b) }'
    )
    assert [line.split("(")[0] for line in emitted(text)] == ["ms.ReluGrad", "ms.ConvGrad"]


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
