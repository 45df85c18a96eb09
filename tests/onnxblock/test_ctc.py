"""CTC: values and gradients are those of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

import onnxtrain
from onnxtrain import onnxblock
from onnxtrain.errors import ModelError
from onnxtrain.onnxblock import loss

TIMES, BATCH, CLASSES = 9, 4, 5
TARGETS = np.array([[1, 2, 2, 3], [4, 4, 0, 0], [3, 1, 4, 0], [2, -1, -1, -1]])
LENGTHS = np.array([4, 2, 3, 1])


def scores(seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    shape = (TIMES, BATCH, CLASSES)
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
    return torch.log_softmax(values, -1).numpy().astype(dtype)


def truth(x: torch.Tensor, inputs: np.ndarray, lengths: np.ndarray, **options: Any) -> torch.Tensor:
    given = [torch.from_numpy(a) for a in (TARGETS, inputs, lengths)]
    return torch.nn.CTCLoss(**options)(x, *given)


def feeds_of(model: onnx.ModelProto, *arrays: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip([value.name for value in model.graph.input], arrays, strict=True))


def gradient(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    result = model.graph.output[0]
    if result.type.tensor_type.shape.dim:
        feeds = {**feeds, f"{result.name}_grad": np.ones(BATCH)}
    return onnxtrain.grad(model, "y_in", result.name)(feeds)["y_in"]


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_values_and_gradients(
    reduction: str, opset: int, echo: Any, forward: Any, run: Any
) -> None:
    model = forward(
        echo(TensorProto.DOUBLE, opset, y=("t", "b", CLASSES)),
        loss.CTCLoss(reduction=reduction),
        "y",
    )
    inputs = np.array([9, 7, 9, 5])
    arrays = (scores(), TARGETS, inputs, LENGTHS)
    x = torch.tensor(scores(), requires_grad=True)
    expected = truth(x, inputs, LENGTHS, reduction=reduction)
    (value,) = run(model, *arrays)
    np.testing.assert_allclose(value, expected.detach().numpy(), rtol=1e-9)
    found = gradient(model, feeds_of(model, *arrays))
    # torch differentiates as if a log-softmax came before; so does what is compared here
    (wanted,) = torch.autograd.grad(expected.sum(), x)
    np.testing.assert_allclose(through_log_softmax(found), wanted.numpy(), rtol=1e-7, atol=1e-10)


def through_log_softmax(grad: np.ndarray) -> np.ndarray:
    """The gradient for the scores of a log-softmax whose result has this gradient."""
    return grad - np.exp(scores()) * grad.sum(-1, keepdims=True)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_targets_that_do_not_fit(zero_infinity: bool, echo: Any, forward: Any, run: Any) -> None:
    block = loss.CTCLoss(reduction="none", zero_infinity=zero_infinity)
    model = forward(echo(TensorProto.DOUBLE, y=("t", "b", CLASSES)), block, "y")
    inputs = np.array([4, 2, 9, 9])
    arrays = (scores(), TARGETS, inputs, LENGTHS)
    expected = truth(
        torch.from_numpy(scores()), inputs, LENGTHS, reduction="none", zero_infinity=zero_infinity
    )
    assert np.isinf(expected.numpy()).sum() == (0 if zero_infinity else 2)
    (value,) = run(model, *arrays)
    np.testing.assert_allclose(value, expected.numpy(), rtol=1e-9)
    found = gradient(model, feeds_of(model, *arrays))
    assert np.isfinite(found).all() and not found[:, :2].any() and found[:, 2:].any()


def test_empty_targets(echo: Any, forward: Any, run: Any) -> None:
    model = forward(echo(TensorProto.DOUBLE, y=("t", "b", CLASSES)), loss.CTCLoss(), "y")
    lengths, inputs = np.array([0, 2, 0, 1]), np.full(BATCH, TIMES)
    (value,) = run(model, scores(), TARGETS, inputs, lengths)
    expected = truth(torch.from_numpy(scores()), inputs, lengths)
    np.testing.assert_allclose(value, expected.numpy(), rtol=1e-9)


def test_another_blank(echo: Any, forward: Any, run: Any) -> None:
    model = forward(echo(TensorProto.DOUBLE, y=("t", "b", CLASSES)), loss.CTCLoss(blank=4), "y")
    inputs, lengths = np.full(BATCH, TIMES), np.array([4, 0, 2, 1])
    (value,) = run(model, scores(), TARGETS, inputs, lengths)
    expected = truth(torch.from_numpy(scores()), inputs, lengths, blank=4)
    np.testing.assert_allclose(value, expected.numpy(), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scores_with_the_batch_first(dtype: Any, echo: Any, forward: Any, run: Any) -> None:
    block = loss.CTCLoss(from_logits=True, batch_first=True)
    element_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = forward(echo(element_type, y=("b", "t", CLASSES)), block, "y")
    inputs = np.full(BATCH, TIMES)
    logits = (scores(dtype=dtype) + dtype(3)).transpose(1, 0, 2)
    (value,) = run(model, logits, TARGETS, inputs, LENGTHS)
    assert value.dtype == dtype
    normalised = torch.log_softmax(torch.tensor(logits.transpose(1, 0, 2)).double(), -1)
    expected = truth(normalised, inputs, LENGTHS)
    np.testing.assert_allclose(value, expected.numpy(), rtol=4 * np.finfo(dtype).eps)


def test_inputs_are_declared(echo: Any, forward: Any) -> None:
    model = forward(echo(y=("t", "b", CLASSES)), loss.CTCLoss(), "y")
    made = onnx.helper.make_tensor_value_info
    assert list(model.graph.input)[1:] == [
        made("targets", TensorProto.INT64, ["b", None]),
        made("input_lengths", TensorProto.INT64, ["b"]),
        made("target_lengths", TensorProto.INT64, ["b"]),
    ]


def test_two_of_them_in_one_model(echo: Any, forward: Any, run: Any) -> None:
    model = forward(
        echo(TensorProto.DOUBLE, y=("t", "b", CLASSES)),
        lambda y: onnxblock.blocks.Add()(loss.CTCLoss()(y), loss.CTCLoss(reduction="sum")(y)),
        "y",
    )
    inputs = np.full(BATCH, TIMES)
    (value,) = run(model, scores(), TARGETS, inputs, LENGTHS)
    x = torch.from_numpy(scores())
    expected = truth(x, inputs, LENGTHS) + truth(x, inputs, LENGTHS, reduction="sum")
    np.testing.assert_allclose(value, expected.numpy(), rtol=1e-9)


def test_old_opsets_are_refused(echo: Any) -> None:
    with (
        onnxblock.base(echo(opset=12, y=("t", "b", CLASSES))),
        pytest.raises(ModelError, match="CTCLoss needs opset 13, the model has 12"),
    ):
        loss.CTCLoss()("y")
