"""Values that kernels of mathematics, reductions and activations refuse, and what they say."""

import pytest
import torch

from onnxtrain.kernels.activation.bias_softmax import bias_softmax
from onnxtrain.kernels.activation.dropout import bias_dropout
from onnxtrain.kernels.activation.fake_quant import fake_quant
from onnxtrain.kernels.activation.gelu import bias_gelu_grad, gelu
from onnxtrain.kernels.activation.pointwise import swi_glu
from onnxtrain.kernels.activation.rectifier import relu_grad
from onnxtrain.kernels.activation.softmax import softmax_rows
from onnxtrain.kernels.math.bits import bit_shift
from onnxtrain.kernels.math.einsum import einsum_integers
from onnxtrain.kernels.math.finite import is_all_finite
from onnxtrain.kernels.math.scale import scale, scaled_sum
from onnxtrain.kernels.reduction.broadcast import broadcast_gradient_args
from onnxtrain.kernels.reduction.reduce import reduce_sum_training

X = torch.ones(2, 3)

REFUSED = {
    "scale 0": (lambda: scale(X, 0.0), "scale is 0"),
    "scale vector": (lambda: scale(X, [1.0, 2.0]), "a single value is needed"),
    "sum of shapes": (
        lambda: scaled_sum(X, X[0], scale_0=1.0, scale_1=1.0),
        r"shapes differ from \(2, 3\)",
    ),
    "sum of three": (
        lambda: scaled_sum(X, X, X, scale_0=1.0, scale_1=1.0),
        "scale_2 is missing",
    ),
    "finite": (lambda: is_all_finite(X, isinf_only=1, isnan_only=1), "both set"),
    "shift": (
        lambda: bit_shift(X.int(), X.int(), direction="UP"),
        "direction is 'UP', allowed are LEFT and RIGHT",
    ),
    "einsum": (lambda: einsum_integers(X.int(), equation="ij,jk"), "2 terms for 1 inputs"),
    "reduce": (lambda: reduce_sum_training(X, [2]), r"axis 2 is not in valid range \[-2,1\]"),
    "broadcast": (
        lambda: broadcast_gradient_args([2, 3], [4]),
        r"\[2, 3\] and \[4\] do not broadcast: 3 and 4 at axis 1",
    ),
    "softmax": (lambda: softmax_rows(X, axis=3), r"axis 3 is not in valid range \[-2,1\]"),
    "bias rows": (
        lambda: bias_softmax(X, torch.ones(4, 3), is_inner_broadcast=1),
        "bias has 4 rows, allowed is a divisor of the 2 rows",
    ),
    "bias shape": (lambda: bias_dropout(X, torch.ones(2)), r"bias has shape \(2,\)"),
    "residual": (lambda: bias_dropout(X, X, X[0]), r"residual has shape \(3,\)"),
    "gelu": (lambda: gelu(X, approximate="erf"), "approximate is 'erf'"),
    "gelu dy": (lambda: bias_gelu_grad(X[0], X, X[0]), r"dY has shape \(3,\)"),
    "gelu bias": (lambda: bias_gelu_grad(X, X, X), r"B has shape \(2, 3\)"),
    "relu": (lambda: relu_grad(X, X[0]), r"dY has shape \(2, 3\), allowed is that of"),
    "swiglu": (lambda: swi_glu(X, X[0]), r"shapes \(2, 3\) and \(3,\) differ"),
    "quantization": (lambda: fake_quant(X, 0.0, 0.0), "scale is 0"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusal_names_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
