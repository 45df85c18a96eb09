"""Rules emit the gradient operators that the reference's kernels implement, with its arguments."""

import pytest

from gradients.emit import emitted

X = "(float[N,4] x) => (float[N,4] y)"
IMAGE = "(float[N,2,4,4] x) => (float[N,2,A,B] y)"

ROWS = {
    f"{X} {{ y = Relu(x) }}": "ms.ReluGrad(d_y, y) -> x_grad",
    f"{X} {{ y = LeakyRelu(x) }}": "ms.LeakyReluGrad(d_y, y) -> x_grad",
    f"{X} {{ y = Sigmoid(x) }}": "ms.SigmoidGrad(d_y, y) -> x_grad",
    f"{X} {{ y = Tanh(x) }}": "ms.TanhGrad(d_y, y) -> x_grad",
    f"{X} {{ y = Gelu(x) }}": "ms.GeluGrad(d_y, x) -> x_grad",
    f'{X} {{ y = Gelu<approximate="tanh">(x) }}': "ms.FastGeluGrad(d_y, x) -> x_grad",
    f"{X} {{ y = com.microsoft.QuickGelu(x) }}": "ms.QuickGeluGrad(d_y, x) -> x_grad",
    f"{X} {{ y = com.microsoft.FastGelu(x) }}": "ms.FastGeluGrad(d_y, x) -> x_grad",
    f"{X} {{ y = Softmax(x) }}": "ms.SoftmaxGrad_13(d_y, y) -> x_grad",
    f"{X} {{ y = LogSoftmax(x) }}": "ms.LogSoftmaxGrad_13(d_y, y) -> x_grad",
    f"{IMAGE} {{ y = MaxPool<kernel_shape=[2,2]>(x) }}": "MaxPoolGrad(d_y, y_mask) -> x_grad",
    "(float[2,2,4,4] x) => (float[2,2,3,3] y) { y = AveragePool<kernel_shape=[2,2]>(x) }": (
        "AveragePoolGrad(d_y) -> x_grad"
    ),
    "(float[N,2,4] x, float[3,2,2] w, float[3] b) => (float[N,3,3] y) { y = Conv(x, w, b) }": (
        "ms.ConvGrad(d_y, x, w) -> x_grad, w_grad, b_grad"
    ),
    "(float[N,4] x, float r, bool t) => (float[N,4] y) { y, m = Dropout(x, r, t) }": (
        "ms.DropoutGrad(d_y, m, r, t) -> x_grad"
    ),
    "(float[N,4] x, float[4] s, float[4] b) => (float[N,4] y) "
    "{ y = LayerNormalization(x, s, b) }": (
        "ms.LayerNormalizationGrad(d_y, x, s, y_mean, y_inv_std_dev) -> x_grad, s_grad, b_grad"
    ),
    "(float[9,4] x, int64[N] i) => (float[N,4] y) { s = Shape(x) y = Gather(x, i) }": (
        "ms.GatherGrad(Constant_INT64_2_9_4, i, d_y) -> x_grad"
    ),
    "(float[9,4] x, int64[9,1] i) => (float[9,1] y) { y = GatherElements<axis=1>(x, i) }": (
        "ms.GatherElementsGrad(d_y, Constant_INT64_2_9_4, i) -> x_grad"
    ),
    "(float[9,4] x, int64[N,1] i) => (float[N,4] y) { y = GatherND(x, i) }": (
        "ms.GatherNDGrad(Constant_INT64_2_9_4, i, d_y) -> x_grad"
    ),
    "(float[9,4] x, int64[1] s, int64[1] e) => (float[M,4] y) { y = Slice(x, s, e) }": (
        "ms.SliceGrad(d_y, Constant_INT64_2_9_4, s, e) -> x_grad"
    ),
    "(float[N,4] x, int64[N] t) => (float y) { y = SoftmaxCrossEntropyLoss(x, t) }": (
        "ms.SoftmaxCrossEntropyLossGrad(d_y, y_log_prob, t) -> x_grad"
    ),
    "(float[N,4] a, float[M,4] b) => (float[K,4] y) "
    "{ y = com.microsoft.ConcatTraining<axis=0>(a, b) }": (
        "ms.SplitTraining(d_y, y_lengths) -> a_grad, b_grad"
    ),
    "(float[N,4] x, float[4] b) => (float[N,4] y) { y = com.microsoft.BiasGelu(x, b) }": (
        "ms.BiasGeluGrad_dX(d_y, x, b) -> x_grad"
    ),
}


@pytest.mark.parametrize("text", ROWS)
def test_the_gradient_is_one_operator(text: str) -> None:
    assert emitted(text)[0] == ROWS[text]
    if "BiasGelu" not in text:  # whose bias is summed back afterwards
        assert len(emitted(text)) == 1


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_old_softmax_has_a_gradient_of_its_own(name: str) -> None:
    assert emitted(f"{X} {{ y = {name}(x) }}", opset=11) == [f"ms.{name}Grad(d_y, y) -> x_grad"]


def test_products_of_matrices_are_gemms() -> None:
    text = "(float[N,4] x, float[4,3] w) => (float[N,3] y) { y = MatMul(x, w) }"
    assert emitted(text) == ["Gemm(d_y, w) -> x_grad", "Gemm(x, d_y) -> w_grad"]


def test_products_of_batches_are_fused_with_their_transposes() -> None:
    text = "(float[B,S,8] x, float[8,4] w) => (float[B,S,4] y) { y = MatMul(x, w) }"
    assert emitted(text, "x") == ["ms.FusedMatMul(d_y, w) -> x_grad"]
    assert [line.split("(")[0] for line in emitted(text, "w")] == ["Reshape", "Reshape", "Gemm"]


def test_unwanted_gradients_of_a_convolution_have_no_name() -> None:
    text = "(float[N,2,4] x, float[3,2,2] w, float[3] b) => (float[N,3,3] y) { y = Conv(x, w, b) }"
    assert emitted(text, "w") == ["ms.ConvGrad(d_y, x, w) -> , w_grad"]


def test_a_mean_over_sizes_that_vary_is_scaled_by_their_product() -> None:
    text = "(float[N,4] x) => (float y) { y = ReduceMean<keepdims=0>(x) }"
    kinds = [line.split("(")[0] for line in emitted(text)]
    assert kinds == ["Size", "Max", "ms.Scale", "Shape", "Expand"]


def test_symbols_that_differ_are_not_taken_for_equal() -> None:
    text = "(float[N,5] a, float[M,5] b) => (float[K,5] y) { y = Add(a, b) }"
    assert any("BroadcastGradientArgs" in line for line in emitted(text))
