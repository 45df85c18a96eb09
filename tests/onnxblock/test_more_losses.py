"""Losses beyond those of the reference: values and gradients are those of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from torch.nn import functional

import onnxtrain
from onnxtrain import onnxblock
from onnxtrain.errors import LossError, ModelError, OptionError
from onnxtrain.onnxblock import loss

REDUCTIONS = ["mean", "sum", "none"]
every_reduction = pytest.mark.parametrize("reduction", REDUCTIONS)
Truth = Callable[..., torch.Tensor]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def check(
    model: onnx.ModelProto,
    truth: Truth,
    predictions: Sequence[np.ndarray],
    targets: Sequence[np.ndarray] = (),
    run: Any = None,
) -> None:
    """Values in onnxruntime and gradients of every prediction, in double, against torch."""
    inputs = [value.name for value in model.graph.input]
    feeds = dict(zip(inputs, [*predictions, *targets], strict=True))
    leaves = [torch.tensor(p, requires_grad=True) for p in predictions]
    expected = truth(*leaves, *(torch.from_numpy(t) for t in targets))
    (value, *_) = run(model, *predictions, *targets)
    np.testing.assert_allclose(value, expected.detach().numpy(), rtol=1e-9, atol=1e-12)
    names = inputs[: len(predictions)]
    result = model.graph.output[0].name
    if expected.ndim:
        seed = normal(*expected.shape, seed=9)
        feeds[f"{result}_grad"] = seed
        expected = (expected * torch.from_numpy(seed)).sum()
    found = onnxtrain.grad(model, names, result)(feeds)
    wanted = torch.autograd.grad(expected, leaves)
    for name, grad in zip(names, wanted, strict=True):
        np.testing.assert_allclose(found[name], grad.numpy(), rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.fixture
def double(echo: Any) -> Callable[..., onnx.ModelProto]:
    return lambda opset=18, **shapes: echo(TensorProto.DOUBLE, opset, **shapes)


@every_reduction
@pytest.mark.parametrize("width", [0.5, 1.0, 2.5])
@pytest.mark.parametrize(
    ("block", "function", "name"),
    [
        (loss.HuberLoss, functional.huber_loss, "delta"),
        (loss.SmoothL1Loss, functional.smooth_l1_loss, "beta"),
    ],
    ids=["huber", "smooth_l1"],
)
def test_robust_regression(
    block: Any,
    function: Truth,
    name: str,
    width: float,
    reduction: str,
    double: Any,
    forward: Any,
    run: Any,
) -> None:
    model = forward(double(y=("b", 6)), block(reduction, width), "y")
    x, y = 2 * normal(5, 6), normal(5, 6, seed=1)
    x[0, 0] = y[0, 0]
    truth = lambda a, b: function(a, b, reduction=reduction, **{name: width})  # noqa: E731
    check(model, truth, [x], [y], run)


@every_reduction
@pytest.mark.parametrize("weight", [None, [1.0, 0.5, 2.0]])
def test_bce_of_probabilities(
    weight: Any, reduction: str, double: Any, forward: Any, run: Any
) -> None:
    model = forward(double(y=("b", 3)), loss.BCELoss(weight, reduction), "y")
    rng = np.random.default_rng(0)
    factor = None if weight is None else torch.tensor(weight).double()
    truth = torch.nn.BCELoss(factor, reduction=reduction)
    check(model, truth, [rng.uniform(0.01, 0.99, (4, 3))], [rng.random((4, 3))], run)


def test_bce_of_certain_probabilities_is_finite(echo: Any, forward: Any, run: Any) -> None:
    model = forward(echo(y=(4,)), loss.BCELoss(reduction="none"), "y")
    p, y = np.array([[0, 1, 0, 1], [0, 1, 1, 0]], np.float32)
    (value,) = run(model, p, y)
    np.testing.assert_array_equal(value, [0, 0, 100, 100])
    (result,) = [output.name for output in model.graph.output]
    grad = onnxtrain.grad(model, "y_in")({"y_in": p, "target": y, f"{result}_grad": p * 0 + 1})
    assert np.isfinite(grad["y_in"]).all()


@pytest.mark.parametrize(
    ("kind", "small"),
    [
        ("FLOAT", [0, 2.0**-126, 2.0**-124, 2.0**-60]),
        ("FLOAT16", [0, 2.0**-24, 2.0**-23, 2.0**-12]),
        ("DOUBLE", [0, 1e-200, 1e-44, 1e-43, 1e-40, 2.0**-126]),
    ],
)
def test_bce_of_small_probabilities_is_their_logarithm(
    kind: str, small: list[float], echo: Any, forward: Any
) -> None:
    number = getattr(TensorProto, kind)
    model = forward(echo(number, y=(len(small),)), loss.BCELoss(reduction="none"), "y")
    p = np.array(small, onnx.helper.tensor_dtype_to_np_dtype(number))
    (value,) = onnxtrain.InferenceSession(model).run(None, {"y_in": p, "target": p * 0 + 1})
    wide = torch.from_numpy(p.astype(np.float64))
    truth = functional.binary_cross_entropy(wide, wide * 0 + 1, reduction="none")
    np.testing.assert_allclose(value, truth.numpy(), rtol=2 * np.finfo(p.dtype).eps)


@pytest.mark.filterwarnings("ignore:reduction. .mean. divides")
@pytest.mark.parametrize("reduction", [*REDUCTIONS, "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_divergence(
    log_target: bool, reduction: str, double: Any, forward: Any, run: Any
) -> None:
    model = forward(double(y=("b", 4)), loss.KLDivLoss(reduction, log_target), "y")
    x = torch.log_softmax(torch.from_numpy(normal(3, 4)), 1).numpy()
    y = torch.softmax(torch.from_numpy(normal(3, 4, seed=1)), 1).numpy()
    if log_target:
        y = np.log(y)
    else:
        y[1] = [0.5, 0, 0.5, 0]
    truth = torch.nn.KLDivLoss(reduction=reduction, log_target=log_target)
    check(model, truth, [x], [y], run)


@every_reduction
@pytest.mark.parametrize("weight", [None, [1.0, 0.5, 2.0, 0.25]], ids=["plain", "weighted"])
def test_likelihood(
    weight: list[float] | None, reduction: str, double: Any, forward: Any, run: Any
) -> None:
    """Of probabilities, also of those whose sum is not 1; none is a number, too."""
    model = forward(double(y=("b", 4)), loss.LikelihoodLoss(weight, reduction, 3), "y")
    p = torch.softmax(torch.from_numpy(normal(5, 4)), 1).numpy() * [[1], [1], [2], [0.5], [1]]
    factor = None if weight is None else torch.tensor(weight, dtype=torch.float64)

    def truth(p: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logs = (p + 2.0**-24).log()
        logs = logs - logs.logsumexp(1, keepdim=True)
        return functional.nll_loss(logs, labels, factor, ignore_index=3, reduction=reduction)

    check(model, truth, [p], [np.array([0, 1, 2, 3, 1])], run)
    value = onnxtrain.InferenceSession(model).run(
        None, {"y_in": np.array([[0.0, -1, 1, 0]]), "labels": np.array([1])}
    )[0]
    assert np.isfinite(value).all()


@every_reduction
@pytest.mark.parametrize("weight", [None, [1.0, 0.5, 2.0, 0.25]], ids=["plain", "weighted"])
@pytest.mark.parametrize("ignore_index", [None, 2, -7])
@pytest.mark.parametrize("extra", [(), (2, 3)], ids=["2d", "4d"])
def test_label_smoothing(
    extra: tuple[int, ...],
    ignore_index: int | None,
    weight: list[float] | None,
    reduction: str,
    double: Any,
    forward: Any,
    run: Any,
) -> None:
    block = loss.CrossEntropyLoss(weight, reduction, ignore_index, label_smoothing=0.2)
    model = forward(double(y=("b", 4, *extra)), block, "y")
    labels = np.random.default_rng(2).integers(0, 4, size=(5, *extra))
    if ignore_index is not None:
        labels[1] = ignore_index
    truth = torch.nn.CrossEntropyLoss(
        None if weight is None else torch.tensor(weight).double(),
        reduction=reduction,
        ignore_index=-100 if ignore_index is None else ignore_index,
        label_smoothing=0.2,
    )
    check(model, truth, [normal(5, 4, *extra)], [labels], run)


def test_smoothed_loss_of_nothing_but_ignored_labels_is_zero(
    double: Any, forward: Any, run: Any
) -> None:
    block = loss.CrossEntropyLoss(ignore_index=1, label_smoothing=0.1)
    model = forward(double(y=("b", 3)), block, "y")
    assert run(model, normal(2, 3), np.array([1, 1])) == [0.0]


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 21])
def test_label_smoothing_in_old_and_new_opsets(opset: int, double: Any) -> None:
    with onnxblock.base(double(opset, y=("b", 4))) as accessor:
        loss.CrossEntropyLoss([1, 2, 3, 4], "mean", 1, 0.1)("y")
        onnx.checker.check_model(accessor.model, full_check=opset >= 12)


def test_label_smoothing_of_many_axes_needs_a_newer_opset(double: Any) -> None:
    with (
        onnxblock.base(double(12, y=("b", 4, 5))),
        pytest.raises(ModelError, match=r"axis 1 of 'y', which has 3.*opset 12"),
    ):
        loss.CrossEntropyLoss(label_smoothing=0.1)("y")


@every_reduction
@pytest.mark.parametrize("margin", [0.5, 4.0])
def test_contrastive(margin: float, reduction: str, double: Any, forward: Any, run: Any) -> None:
    def truth(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        d = functional.pairwise_distance(a, b)
        each = (y * d**2 + (1 - y) * (margin - d).clamp(min=0) ** 2) / 2
        return {"mean": each.mean, "sum": each.sum, "none": lambda: each}[reduction]()

    block = loss.ContrastiveLoss(margin, reduction)
    model = forward(double(a=("n", 3), b=("n", 3)), block, "a", "b")
    y = np.array([0.0, 1, 0, 1, 1])
    check(model, truth, [normal(5, 3), normal(5, 3, seed=1)], [y], run)


def test_contrastive_gradient_of_equal_rows_is_finite(double: Any, forward: Any) -> None:
    model = forward(double(a=("n", 3), b=("n", 3)), loss.ContrastiveLoss(), "a", "b")
    a = normal(2, 3)
    grads = onnxtrain.grad(model, "a_in")({"a_in": a, "b_in": a, "target": np.zeros(2)})
    assert np.isfinite(grads["a_in"]).all()


@every_reduction
def test_triplets(reduction: str, double: Any, forward: Any, run: Any) -> None:
    block = loss.TripletMarginLoss(0.7, reduction)
    model = forward(double(a=("n", 3), p=("n", 3), q=("n", 3)), block, "a", "p", "q")
    truth = torch.nn.TripletMarginLoss(0.7, reduction=reduction)
    check(model, truth, [normal(6, 3), normal(6, 3, seed=1), normal(6, 3, seed=2)], run=run)


@every_reduction
@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_cosine_embedding(
    margin: float, reduction: str, double: Any, forward: Any, run: Any
) -> None:
    block = loss.CosineEmbeddingLoss(margin, reduction)
    model = forward(double(a=("n", 3), b=("n", 3)), block, "a", "b")
    truth = torch.nn.CosineEmbeddingLoss(margin, reduction=reduction)
    y = np.array([1.0, -1, 1, -1, -1])
    check(model, truth, [normal(5, 3), normal(5, 3, seed=1)], [y], run)


@every_reduction
@pytest.mark.parametrize("symmetric", [False, True])
def test_info_nce(symmetric: bool, reduction: str, double: Any, forward: Any, run: Any) -> None:
    def truth(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        scores = functional.normalize(a) @ functional.normalize(b).T / 0.2
        labels = torch.arange(len(a))
        one = functional.cross_entropy(scores, labels, reduction=reduction)
        other = functional.cross_entropy(scores.T, labels, reduction=reduction)
        return (one + other) / 2 if symmetric else one

    block = loss.InfoNCELoss(0.2, symmetric, reduction)
    model = forward(double(a=("n", 3), b=("n", 3)), block, "a", "b")
    check(model, truth, [normal(5, 3), normal(5, 3, seed=1)], run=run)


def test_weighted_sum_of_losses(double: Any, forward: Any, run: Any) -> None:
    block = loss.WeightedSum([loss.MSELoss(), loss.CrossEntropyLoss(), loss.MSELoss()], [2, 0.5, 1])
    shapes = {"y": ("b", 3), "scores": ("b", 4), "z": ("b", 2)}
    model = forward(double(**shapes), block, *shapes)
    targets = ["y_target", "scores_target", "z_target"]
    assert [value.name for value in model.graph.input][3:] == targets

    def parts(*given: torch.Tensor) -> list[torch.Tensor]:
        y, scores, z, *wanted = given
        return [
            functional.mse_loss(y, wanted[0]),
            functional.cross_entropy(scores, wanted[1]),
            functional.mse_loss(z, wanted[2]),
        ]

    def truth(*given: torch.Tensor) -> torch.Tensor:
        one, two, three = parts(*given)
        return 2 * one + 0.5 * two + three

    outputs = [normal(5, 3), normal(5, 4, seed=1), normal(5, 2, seed=2)]
    wanted = [normal(5, 3, seed=3), np.array([0, 3, 1, 1, 2]), normal(5, 2, seed=4)]
    check(model, truth, outputs, wanted, run)
    values = run(model, *outputs, *wanted)[1:]
    expected = parts(*(torch.from_numpy(a) for a in (*outputs, *wanted)))
    np.testing.assert_allclose(values, [float(e) for e in expected])


def test_weighted_sum_may_name_its_targets(double: Any, forward: Any) -> None:
    block = loss.WeightedSum([loss.L1Loss(), loss.L1Loss()], target_names=["t", "t"])
    model = forward(double(y=("b", 3), z=("b", 3)), block, "y", "z")
    assert [value.name for value in model.graph.input] == ["y_in", "z_in", "t"]


def test_weighted_sum_refuses_what_does_not_fit(double: Any) -> None:
    with pytest.raises(LossError, match="1 losses have 2 weights"):
        loss.WeightedSum([loss.L1Loss()], [1, 2])
    with pytest.raises(LossError, match="no loss to add up"):
        loss.WeightedSum([])
    with onnxblock.base(double(y=(3,))), pytest.raises(LossError, match="2 losses cannot take 1"):
        loss.WeightedSum([loss.L1Loss(), loss.L1Loss()])("y")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: loss.HuberLoss(delta=0), "delta of HuberLoss is 0"),
        (lambda: loss.InfoNCELoss(0), "temperature of InfoNCELoss is 0"),
        (lambda: loss.CrossEntropyLoss(label_smoothing=1.5), "label_smoothing is 1.5"),
    ],
)
def test_impossible_options(make: Any, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        make()


@pytest.mark.parametrize(
    "block",
    [
        loss.BCELoss,
        loss.CTCLoss,
        loss.ContrastiveLoss,
        loss.CosineEmbeddingLoss,
        loss.HuberLoss,
        loss.InfoNCELoss,
        loss.KLDivLoss,
        loss.LikelihoodLoss,
        loss.SmoothL1Loss,
        loss.TripletMarginLoss,
    ],
)
def test_unknown_reduction(block: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^Reduction median not supported\.$"):
        block(reduction="median")


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.FLOAT])
@pytest.mark.parametrize(
    ("block", "names"),
    [
        (loss.BCELoss, "y"),
        (loss.HuberLoss, "y"),
        (loss.SmoothL1Loss, "y"),
        (loss.KLDivLoss, "y"),
        (loss.LikelihoodLoss, "y"),
        (lambda: loss.CrossEntropyLoss([1, 2, 3], "mean", 1, 0.1), "y"),
        (loss.ContrastiveLoss, "yz"),
        (loss.CosineEmbeddingLoss, "yz"),
        (loss.InfoNCELoss, "yz"),
    ],
)
def test_valid_in_every_opset_and_type(
    block: Any, names: str, dtype: int, opset: int, echo: Any
) -> None:
    with onnxblock.base(echo(dtype, opset, y=("b", 3), z=("b", 3))) as accessor:
        block()(*names)
        onnx.checker.check_model(accessor.model, full_check=True)
