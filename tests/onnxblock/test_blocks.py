from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import onnxblock
from onnxtrain.onnxblock import blocks

A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], np.float32)
B = np.array([[2.0, 1.0, -1.0], [4.0, 0.5, 8.0]], np.float32)


@pytest.mark.parametrize(
    ("block", "truth"),
    [
        (blocks.Add, np.add),
        (blocks.Sub, np.subtract),
        (blocks.Mul, np.multiply),
        (blocks.Div, np.divide),
        (blocks.Equal, np.equal),
        (blocks.Greater, np.greater),
    ],
)
def test_two_values(
    block: Any, truth: Callable[..., Any], echo: Any, forward: Any, run: Any
) -> None:
    model = forward(echo(a=(2, 3), b=(2, 3)), block(), "a", "b")
    np.testing.assert_allclose(run(model, A, B)[0], truth(A, B), rtol=1e-6)


@pytest.mark.parametrize(
    ("block", "truth"),
    [
        (blocks.Sigmoid(), lambda x: 1 / (1 + np.exp(-x))),
        (blocks.Exp(), np.exp),
        (blocks.Neg(), np.negative),
        (blocks.Abs(), np.abs),
        (blocks.Pow(3), lambda x: x**3),
        (blocks.ReduceMean(), lambda x: np.mean(x, keepdims=True)),
        (blocks.ReduceMean(keepdims=False), np.mean),
        (blocks.ReduceSum(), lambda x: np.sum(x, keepdims=True)),
        (blocks.ReduceSum(keepdims=False), np.sum),
        (blocks.Clip(-1, 2.5), lambda x: np.clip(x, -1, 2.5)),
        (blocks.Clip(clip_min=0), lambda x: np.maximum(x, 0)),
        (blocks.Clip(clip_max=0), lambda x: np.minimum(x, 0)),
        (blocks.Clip(), lambda x: x),
        (blocks.Relu(), lambda x: np.maximum(x, 0)),
        (blocks.Transpose(), np.transpose),
        (blocks.ReduceSum(axes=[1]), lambda x: np.sum(x, 1, keepdims=True)),
        (blocks.ReduceMean(keepdims=False, axes=[0]), lambda x: np.mean(x, 0)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, onnxblock.Block) else "",
)
def test_one_value(
    block: Any, truth: Callable[..., Any], echo: Any, forward: Any, run: Any
) -> None:
    (value,) = run(forward(echo(a=(2, 3)), block, "a"), A)
    expected = truth(A)
    assert value.shape == np.shape(expected)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21])
@pytest.mark.parametrize(
    ("block", "truth"), [(blocks.ReduceSum, np.sum), (blocks.ReduceMean, np.mean)]
)
def test_axes_in_every_opset(
    block: Any, truth: Callable[..., Any], opset: int, echo: Any, forward: Any, run: Any
) -> None:
    model = forward(echo(opset=opset, a=(2, 3)), block(keepdims=False, axes=[1]), "a")
    np.testing.assert_allclose(run(model, A)[0], truth(A, 1), rtol=1e-6)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_log_softmax(axis: int, echo: Any, forward: Any, run: Any) -> None:
    model = forward(echo(TensorProto.DOUBLE, a=(2, 3)), blocks.LogSoftmax(axis), "a")
    a = A.astype(np.float64)
    expected = a - np.log(np.exp(a).sum(axis, keepdims=True))
    np.testing.assert_allclose(run(model, a)[0], expected, rtol=1e-12)


def test_matmul_sqrt_and_where(echo: Any, forward: Any, run: Any) -> None:
    def build(a: str, b: str) -> Any:
        product = blocks.MatMul()(a, blocks.Transpose()(b))
        return blocks.Where()(blocks.Greater()(a, b), a, blocks.Sqrt()(blocks.Abs()(b))), product

    model = forward(echo(a=(2, 3), b=(2, 3)), build, "a", "b")
    chosen, product = run(model, A, B)
    np.testing.assert_allclose(chosen, np.where(A > B, A, np.sqrt(np.abs(B))), rtol=1e-6)
    np.testing.assert_allclose(product, A @ B.T, rtol=1e-6)


def test_log(echo: Any, forward: Any, run: Any) -> None:
    (value,) = run(forward(echo(a=(2, 3)), blocks.Log(), "a"), np.abs(A))
    np.testing.assert_allclose(value, np.log(np.abs(A)), rtol=1e-6)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16])
@pytest.mark.parametrize("block", [blocks.Pow(2), blocks.Clip(0, 1), blocks.Linear(3, 2)])
def test_constants_have_the_type_of_the_value(block: Any, dtype: int, echo: Any) -> None:
    with onnxblock.base(echo(dtype, a=(2, 3))) as accessor:
        block("a")
        assert {tensor.data_type for tensor in accessor.model.graph.initializer} == {dtype}


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [((3,), TensorProto.FLOAT), ((0.25, TensorProto.FLOAT16), TensorProto.FLOAT16)],
)
def test_constant(arguments: tuple[Any, ...], dtype: int, echo: Any) -> None:
    with onnxblock.base(echo(a=(2, 3))) as accessor:
        name = blocks.Constant(*arguments)()
        (tensor,) = accessor.model.graph.initializer
    assert (tensor.name, tensor.data_type, list(tensor.dims)) == (name, dtype, [])
    assert numpy_helper.to_array(tensor) == arguments[0]
    assert name.startswith("onnx::initializer::")


def test_sequence_construct(echo: Any, forward: Any, run: Any) -> None:
    model = forward(echo(a=(2, 3), b=(2, 3)), blocks.SequenceConstruct(), "a", "b")
    (value,) = run(model, A, B)
    np.testing.assert_array_equal(value, [A, B])


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (TensorProto.FLOAT, TensorProto.FLOAT),
        (TensorProto.FLOAT16, TensorProto.FLOAT),
        (TensorProto.DOUBLE, TensorProto.DOUBLE),
    ],
)
def test_reduce_all_l2(given: int, result: int, echo: Any, forward: Any) -> None:
    model = forward(echo(given, a=(2, 3), b=("n",)), blocks.ReduceAllL2(), "a", "b")
    node = model.graph.node[-1]
    assert (node.op_type, node.domain, list(node.input)) == (
        "ReduceAllL2",
        "com.microsoft",
        ["a", "b"],
    )
    (output,) = model.graph.output
    assert output == helper.make_tensor_value_info(output.name, result, [])


def test_pass_through(echo: Any) -> None:
    with onnxblock.base(echo(a=(2, 3), b=(2, 3))) as accessor:
        assert blocks.PassThrough()("a", "b") == ("a", "b")
        assert blocks.PassThrough()("a") == ("a",)
        assert len(accessor.model.graph.node) == 2


@pytest.mark.parametrize("like", ["output", "a", "x"])
@pytest.mark.parametrize("name", ["given", None])
def test_input_like(like: str, name: str | None, perceptron: onnx.ModelProto) -> None:
    shape = {"output": ["batch", 3], "a": ["batch", 8], "x": ["batch", 4]}[like]
    with onnxblock.base(perceptron) as accessor:
        result = blocks.InputLike(like)(name)
        new = accessor.model.graph.input[-1]
    assert new == helper.make_tensor_value_info(result, TensorProto.FLOAT, shape)
    assert result == "given" if name else result.startswith("onnx::input::")


def test_input_like_what_is_missing(perceptron: onnx.ModelProto) -> None:
    with onnxblock.base(perceptron), pytest.raises(LookupError, match="no value 'nowhere'"):
        blocks.InputLike("nowhere")("new")


def test_label_encoder(echo: Any, forward: Any, run: Any) -> None:
    encoder = blocks.LabelEncoder(default_float=-1, keys_int64s=[3, 7], values_floats=[1, 0.5])
    model = forward(echo(TensorProto.INT64, a=(3,)), encoder, "a")
    (value,) = run(model, np.array([7, 3, 5]))
    np.testing.assert_array_equal(value, np.array([0.5, 1, -1], np.float32))


def test_cast(echo: Any, forward: Any, run: Any) -> None:
    model = forward(echo(a=(2, 3)), blocks.Cast(TensorProto.INT64), "a")
    np.testing.assert_array_equal(run(model, A)[0], A.astype(np.int64))


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool, echo: Any, forward: Any, run: Any) -> None:
    model = forward(echo(a=("n", 3)), blocks.Linear(3, 5, bias, alpha=2, beta=0.5), "a")
    weight, *rest = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    assert weight.shape == (3, 5)
    assert [b.shape for b in rest] == ([(5,)] if bias else [])
    expected = 2 * A @ weight + (0.5 * rest[0] if bias else 0)
    np.testing.assert_allclose(run(model, A)[0], expected, rtol=1e-5, atol=1e-6)


def test_linear_follows_the_seed_of_numpy(echo: Any, forward: Any) -> None:
    weights = []
    for _ in range(2):
        np.random.seed(5)
        model = forward(echo(a=("n", 3)), blocks.Linear(3, 5), "a")
        weights.append(numpy_helper.to_array(model.graph.initializer[0]))
    np.testing.assert_array_equal(*weights)
