from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import onnxblock
from onnxtrain.errors import LossError, ModelError
from onnxtrain.onnxblock import loss

TYPES = [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16]
REDUCTIONS = ["mean", "sum", "none"]
EPSILON = {
    TensorProto.FLOAT: 2.0**-23,
    TensorProto.DOUBLE: 2.0**-52,
    TensorProto.FLOAT16: 2.0**-10,
    TensorProto.BFLOAT16: 2.0**-7,
}
every_type = pytest.mark.parametrize("dtype", TYPES, ids=TensorProto.DataType.Name)
every_reduction = pytest.mark.parametrize("reduction", REDUCTIONS)


def random(shape: tuple[int, ...], dtype: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=shape)
    return values.astype(helper.tensor_dtype_to_np_dtype(dtype))


def exact(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float64))


def assert_close(actual: Any, expected: torch.Tensor, dtype: int) -> None:
    """Within a few roundings of the type, of the values and of what is added up to get them."""
    assert actual.dtype == helper.tensor_dtype_to_np_dtype(dtype)
    assert actual.shape == tuple(expected.shape)
    tolerance = 6 * EPSILON[dtype]
    np.testing.assert_allclose(
        actual.astype(np.float64), expected.numpy(), rtol=tolerance, atol=tolerance
    )


def op_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@every_type
@every_reduction
@pytest.mark.parametrize(
    ("block", "truth"),
    [(loss.MSELoss, torch.nn.MSELoss), (loss.L1Loss, torch.nn.L1Loss)],
    ids=["mse", "l1"],
)
def test_regression_losses(
    block: Any, truth: Any, reduction: str, dtype: int, echo: Any, forward: Any, run: Any
) -> None:
    model = forward(echo(dtype, y=("b", 4)), block(reduction), "y")
    x, y = random((3, 4), dtype), random((3, 4), dtype, seed=1)
    (value,) = run(model, x, y)
    assert_close(value, truth(reduction=reduction)(exact(x), exact(y)), dtype)


@every_type
@every_reduction
@pytest.mark.parametrize("weight", [None, 0.5, [1.0, 0.0, 2.0, 0.5]], ids=["plain", "one", "each"])
@pytest.mark.parametrize("pos_weight", [None, 3.0, np.array([0.5, 1, 2, 4])], ids=str)
def test_bce_with_logits(
    weight: Any, pos_weight: Any, reduction: str, dtype: int, echo: Any, forward: Any, run: Any
) -> None:
    block = loss.BCEWithLogitsLoss(weight, reduction, pos_weight)
    model = forward(echo(dtype, y=("b", 4)), block, "y")
    x = random((3, 4), dtype)
    y = np.random.default_rng(1).random((3, 4)).astype(x.dtype)
    (value,) = run(model, x, y)
    factors = [None if w is None else torch.tensor(w).double() for w in (weight, pos_weight)]
    truth = torch.nn.BCEWithLogitsLoss(factors[0], reduction=reduction, pos_weight=factors[1])
    assert_close(value, truth(exact(x), exact(y)), dtype)


@every_type
def test_bce_is_stable_for_saturated_logits(dtype: int, echo: Any, forward: Any, run: Any) -> None:
    model = forward(echo(dtype, y=(8,)), loss.BCEWithLogitsLoss(reduction="none"), "y")
    x = np.array([200, 200, 200, -200, -200, -200, 60000, -60000])
    y = np.array([0, 1, 0.5, 0, 1, 0.5, 1, 1])
    x, y = (a.astype(helper.tensor_dtype_to_np_dtype(dtype)) for a in (x, y))
    (value,) = run(model, x, y)
    truth = torch.nn.BCEWithLogitsLoss(reduction="none")
    assert_close(value, truth(exact(x), exact(y)), dtype)


def test_bce_keeps_small_losses_of_confident_predictions(echo: Any, forward: Any, run: Any) -> None:
    model = forward(echo(TensorProto.DOUBLE, y=(2,)), loss.BCEWithLogitsLoss(reduction="none"), "y")
    (value,) = run(model, np.array([20.0, -20.0]), np.array([1.0, 0.0]))
    np.testing.assert_allclose(value, np.log1p(np.exp([-20.0, -20.0])), rtol=1e-6)


@pytest.mark.parametrize("pos_weight", [None, 3.0])
def test_bce_gradient_follows_from_its_operators_also_at_zero(
    pos_weight: float | None, echo: Any, forward: Any
) -> None:
    block = loss.BCEWithLogitsLoss(reduction="sum", pos_weight=pos_weight)
    model = forward(echo(TensorProto.DOUBLE, y=(5,)), block, "y")
    x = torch.tensor([0.0, 0.0, 1.5, -200.0, 200.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.0, 1.0, 0.25, 1.0, 0.0], dtype=torch.float64)
    (actual,) = torch.autograd.grad(evaluate(model, {"y_in": x, "target": y}), x)
    factor = None if pos_weight is None else torch.tensor(pos_weight)
    truth = torch.nn.BCEWithLogitsLoss(reduction="sum", pos_weight=factor)(x, y)
    (expected,) = torch.autograd.grad(truth, x)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def evaluate(model: onnx.ModelProto, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """Run a graph operator by operator in torch, where the gradient of |x| is 0 at 0 too."""
    functions: dict[str, Callable[..., torch.Tensor]] = {
        "Identity": lambda x: x,
        "ReduceSum": torch.sum,
        **{name: getattr(torch, name.lower()) for name in ("Abs", "Neg", "Exp", "Log")},
        **{name: getattr(torch, name.lower()) for name in ("Add", "Sub", "Mul")},
    }
    values = dict(values)
    for tensor in model.graph.initializer:
        values[tensor.name] = torch.from_numpy(numpy_helper.to_array(tensor).copy())
    for node in model.graph.node:
        values[node.output[0]] = functions[node.op_type](*(values[name] for name in node.input))
    return values[model.graph.output[0].name]


@every_type
@every_reduction
@pytest.mark.parametrize("weight", [None, [1.0, 0.5, 2.0, 0.25]], ids=["plain", "weighted"])
@pytest.mark.parametrize("ignore_index", [None, 2])
@pytest.mark.parametrize("extra", [(), (3,), (2, 3)], ids=["2d", "3d", "4d"])
def test_cross_entropy(
    extra: tuple[int, ...],
    ignore_index: int | None,
    weight: list[float] | None,
    reduction: str,
    dtype: int,
    echo: Any,
    forward: Any,
    run: Any,
) -> None:
    block = loss.CrossEntropyLoss(weight, reduction, ignore_index)
    model = forward(echo(dtype, y=("b", 4, *extra)), block, "y")
    scores = random((5, 4, *extra), dtype)
    labels = np.random.default_rng(2).integers(0, 4, size=(5, *extra))
    (value,) = run(model, scores, labels)
    truth = torch.nn.CrossEntropyLoss(
        None if weight is None else torch.tensor(weight).double(),
        reduction=reduction,
        ignore_index=-100 if ignore_index is None else ignore_index,
    )
    assert_close(value, truth(exact(scores), torch.from_numpy(labels)), dtype)


def test_weight_may_be_a_numpy_array(echo: Any, forward: Any) -> None:
    weight = np.array([1.0, 2.0, 3.0])
    model = forward(echo(TensorProto.FLOAT16, y=("b", 3)), loss.CrossEntropyLoss(weight), "y")
    (tensor,) = model.graph.initializer
    assert tensor.data_type == TensorProto.FLOAT16
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), weight)


def test_graph_of_mse(echo: Any, forward: Any) -> None:
    model = forward(echo(y=("b", 4)), loss.MSELoss(), "y")
    assert op_types(model) == ["Identity", "Sub", "Pow", "ReduceMean"]
    sub, power, mean = list(model.graph.node)[1:]
    assert list(sub.input) == ["y", "target"]
    assert [numpy_helper.to_array(t) for t in model.graph.initializer] == [2.0]
    assert power.input[1] == model.graph.initializer[0].name
    assert mean.attribute[0].name == "keepdims"
    assert mean.attribute[0].i == 0
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert len(model.graph.output[0].type.tensor_type.shape.dim) == 0


def test_graph_of_l1(echo: Any, forward: Any) -> None:
    model = forward(echo(y=("b", 4)), loss.L1Loss("sum"), "y")
    assert op_types(model) == ["Identity", "Sub", "Abs", "ReduceSum"]


def test_graph_of_cross_entropy(echo: Any, forward: Any) -> None:
    model = forward(echo(y=("b", 4)), loss.CrossEntropyLoss(ignore_index=-1), "y")
    node = model.graph.node[1]
    assert list(node.input) == ["y", "labels"]
    assert [name.split("::")[1] for name in node.output] == ["loss", "log_prob"]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert attributes == {"reduction": b"mean", "ignore_index": -1}


@pytest.mark.parametrize("dtype", TYPES, ids=TensorProto.DataType.Name)
def test_target_is_made_like_the_prediction(dtype: int, echo: Any, forward: Any) -> None:
    model = forward(echo(dtype, y=("b", 4)), loss.MSELoss(), "y")
    expected = helper.make_tensor_value_info("target", dtype, ["b", 4])
    assert model.graph.input[1] == expected


@pytest.mark.parametrize(
    ("scores", "labels"),
    [(("b", 4), ("b",)), (("b", 4, 7), ("b", 7)), (("b", "c", "h", "w"), ("b", "h", "w"))],
)
def test_labels_lack_the_axis_of_classes(
    scores: tuple[Any, ...], labels: tuple[Any, ...], echo: Any, forward: Any
) -> None:
    model = forward(echo(y=scores), lambda y: loss.CrossEntropyLoss()(y, "truth"), "y")
    expected = helper.make_tensor_value_info("truth", TensorProto.INT64, labels)
    assert model.graph.input[1] == expected


def test_scores_need_an_axis_of_classes(echo: Any) -> None:
    with onnxblock.base(echo(y=("c",))), pytest.raises(ModelError, match="have 1 axes"):
        loss.CrossEntropyLoss()("y")


def test_existing_target_is_used(echo: Any, forward: Any, run: Any) -> None:
    model = forward(echo(y=("b", 4), z=("b", 4)), loss.L1Loss(), "y", "z")
    assert [value.name for value in model.graph.input] == ["y_in", "z_in"]
    x, z = np.ones((2, 4), np.float32), np.full((2, 4), 4, np.float32)
    assert run(model, x, z) == [3.0]


@pytest.mark.parametrize("shape", [("b", 1), (4,), (), (1, 4, 4)], ids=str)
def test_an_existing_target_of_another_shape_is_told(shape: Any, echo: Any, forward: Any) -> None:
    shown = str(list(shape)).replace("'", "")
    told = f"target 'z' has shape {shown} and prediction 'y' [b, 4]: the loss broadcasts them"
    with pytest.warns(UserWarning, match=re.escape(told)):
        forward(echo(y=("b", 4), z=shape), loss.MSELoss(), "y", "z")


@pytest.mark.parametrize("shape", [("b", 3), (3,), (2, "b", 3)], ids=str)
def test_an_existing_target_that_never_fits_is_refused(shape: Any, echo: Any) -> None:
    with warnings.catch_warnings(), onnxblock.base(echo(y=("b", 4), z=shape)):
        warnings.simplefilter("error")
        with pytest.raises(LossError, match="the loss cannot compare them"):
            loss.MSELoss()("y", "z")


@pytest.mark.parametrize("shape", [("c", 4), (3, "d")], ids=str)
def test_an_existing_target_that_may_fit_is_not(shape: Any, echo: Any, forward: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forward(echo(y=("b", 4), z=shape), loss.MSELoss(), "y", "z")


def test_target_without_a_name_gets_one(echo: Any) -> None:
    with onnxblock.base(echo(y=("b", 4))) as accessor:
        loss.L1Loss()("y", None)
        assert accessor.model.graph.input[1].name.startswith("onnx::input::")


def test_loss_of_an_inner_value(echo: Any, forward: Any, run: Any) -> None:
    def build(y: str) -> Any:
        return loss.MSELoss()(onnxblock.blocks.Abs()(y))

    model = forward(echo(TensorProto.FLOAT16, y=("b", 2)), build, "y")
    x, target = np.array([[-1, 2]], np.float16), np.array([[3, 2]], np.float16)
    assert run(model, x, target) == [2.0]


@pytest.mark.parametrize("opset", [12, 13, 15, 17, 21, 23])
@pytest.mark.parametrize(
    "block", [loss.MSELoss, loss.L1Loss, loss.BCEWithLogitsLoss, loss.CrossEntropyLoss]
)
def test_losses_are_valid_in_old_and_new_opsets(block: Any, opset: int, echo: Any) -> None:
    with onnxblock.base(echo(opset=opset, y=("b", 4))) as accessor:
        block()("y")
        onnx.checker.check_model(accessor.model, full_check=True)


@pytest.mark.parametrize(
    "block", [loss.MSELoss, loss.L1Loss, loss.BCEWithLogitsLoss, loss.CrossEntropyLoss]
)
def test_unknown_reduction(block: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^Reduction median not supported\.$"):
        block(reduction="median")


@pytest.mark.parametrize(
    "block", [loss.MSELoss, loss.L1Loss, loss.BCEWithLogitsLoss, loss.CrossEntropyLoss]
)
def test_missing_prediction(block: Any, echo: Any) -> None:
    with onnxblock.base(echo(y=("b", 4))), pytest.raises(LookupError, match="no value 'nowhere'"):
        block()("nowhere")
